tables <- function() {
  set.seed(1)
  made <- lapply(1:3, function(i) {
    age <- round(rnorm(80), 3)
    data.frame(age = age, ill = as.integer(runif(80) < plogis(age)))
  })
  setNames(made, c("north", "south", "west"))
}

needs_command <- function() {
  command <- getOption("consortia.command", Sys.which("consortia"))
  if (!nzchar(command[1])) skip("the command consortia is not on the PATH")
}

test_that("a study is written as a study file", {
  study <- cons_study(ill ~ age, tables(), priors = c(coefficients = "normal(0, 1)"))
  lines <- readLines(study$path)
  expect_true("formula = \"ill ~ age\"" %in% lines)
  expect_true("files = [\"north.csv\", \"south.csv\", \"west.csv\"]" %in% lines)
  expect_true("prior = { \"coefficients\" = \"normal(0, 1)\" }" %in% lines)
  expect_true("name = \"few_rounds\"" %in% lines)
})

test_that("sites without names are refused", {
  expect_error(cons_study(ill ~ age, unname(tables())), "name of each site")
})

test_that("a run gives draws, and tables of them", {
  needs_command()
  result <- cons_run(cons_study(ill ~ age, tables()))
  found <- tidy(result)
  expect_gt(nrow(as.data.frame(result)), 500)
  slope <- found[grep("age", found$term), ]
  expect_lt(abs(slope$estimate - 1), 4 * slope$std.error)
  grDevices::pdf(NULL)
  expect_equal(plot(result)$term, found$term)
  grDevices::dev.off()
})

test_that("an error of the command is an error here", {
  needs_command()
  expect_error(cons_check("nowhere.toml"), "nowhere.toml")
})

test_that("factors keep their levels in their order, and arguments of the model are written", {
  made <- lapply(tables(), function(one) {
    one$arm <- factor(rep(c("active", "placebo"), 40), levels = c("placebo", "active"))
    one
  })
  study <- cons_study(ill ~ arm, made, missing = "complete", integrate = TRUE)
  lines <- readLines(study$path)
  expect_true("levels = { \"arm\" = [\"placebo\", \"active\"] }" %in% lines)
  expect_true("missing = \"complete\"" %in% lines)
  expect_true("integrate = true" %in% lines)
  made$south$arm <- factor(made$south$arm, levels = c("active", "placebo"))
  expect_error(cons_study(ill ~ arm, made), "factor arm has not the same levels")
  expect_error(cons_study(ill ~ age, made, "bernoulli", NULL, tempfile(), NULL, 4L, 1L,
                          c(name = "few_rounds"), NULL, "complete"), "keys of")
})
