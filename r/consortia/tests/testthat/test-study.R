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
  expect_equal(as.character(verdict(result)), "good")
  expect_equal(unique(checks(result)$verdict), "good")
  expect_equal(nrow(checks(result)), length(unique(checks(result)$title)))
  seen <- glance(result)
  expect_equal(seen$draws, nrow(as.data.frame(result)))
  expect_lt(seen$r.hat, 1.02)
  expect_gt(seen$ess, 400)
  expect_equal(unname(coef(result)[slope$term]), slope$estimate)
  # At draws' own coefficients a prediction is the mean of their probabilities.
  new <- data.frame(age = c(-1, 0, 2))
  draws <- as.data.frame(result)
  wanted <- vapply(new$age, function(age) {
    mean(plogis(draws$intercept + age * draws[["coefficients[age]"]]))
  }, 0)
  made <- predict(result, new)
  expect_equal(made$mean, wanted, tolerance = 1e-4)
  expect_true(all(made[["2.5%"]] < made$mean & made$mean < made[["97.5%"]]))
  expect_error(predict(result, data.frame(weight = 1)), "age")
  if (requireNamespace("generics", quietly = TRUE)) {
    expect_equal(generics::tidy(result), tidy(result))
    expect_equal(generics::glance(result), glance(result))
  }
  if (requireNamespace("posterior", quietly = TRUE)) {
    expect_equal(posterior::ndraws(posterior::as_draws(result)), seen$draws)
  }
})

test_that("what a site changes in its table is written", {
  changes <- list(north = list(missing_values = list(age = "-9"), rename = c(Age = "age")))
  lines <- readLines(cons_study(ill ~ age, tables(), harmonise = changes)$path)
  at <- match("[harmonise.\"north\"]", lines)
  expect_equal(lines[at + 1:2], c("missing_values = { \"age\" = [\"-9\"] }",
                                  "rename = { \"Age\" = \"age\" }"))
  expect_error(cons_study(ill ~ age, tables(), harmonise = list(rome = list())), "no site rome")
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
  made <- lapply(made, function(one) {
    one$grade <- cut(one$age, c(-Inf, 0, Inf), labels = c("mild", "severe"), ordered_result = TRUE)
    one
  })
  lines <- readLines(cons_study(grade ~ age, made, "ordinal")$path)
  expect_true("levels = { \"grade\" = [\"mild\", \"severe\"] }" %in% lines)
  made$south$arm <- factor(made$south$arm, levels = c("active", "placebo"))
  expect_error(cons_study(ill ~ arm, made), "factor arm has not the same levels")
  expect_error(cons_study(ill ~ age, made, "bernoulli", NULL, tempfile(), NULL, 4L, 1L,
                          c(name = "few_rounds"), NULL, "complete"), "keys of")
})
