# A study: a formula, a table at each site, a family and priors, written as a study file.

toml_string <- function(text) {
  encodeString(enc2utf8(as.character(text)), quote = "\"")
}

# A named vector or list is a table, several values are an array.
toml_value <- function(value) {
  if (!is.null(names(value))) {
    pairs <- sprintf("%s = %s", toml_string(names(value)), vapply(value, toml_value, ""))
    return(sprintf("{ %s }", paste(pairs, collapse = ", ")))
  }
  if (length(value) != 1 || is.list(value) || inherits(value, "AsIs")) {
    return(sprintf("[%s]", paste(vapply(value, toml_value, ""), collapse = ", ")))
  }
  if (is.logical(value)) return(tolower(value))
  if (is.numeric(value)) return(format(value, digits = 15))
  toml_string(value)
}

# Levels of factors in their order, which a text file does not keep. All sites must agree on them.
levels_of <- function(sites) {
  tables <- Filter(is.data.frame, sites)
  factors <- unique(unlist(lapply(tables, function(one) names(Filter(is.factor, one)))))
  found <- lapply(factors, function(name) {
    orders <- unique(lapply(Filter(function(one) is.factor(one[[name]]), tables),
                            function(one) levels(one[[name]])))
    if (length(orders) > 1) {
      stop("sites: the factor ", name, " has not the same levels in the same order everywhere.",
           call. = FALSE)
    }
    I(orders[[1]])
  })
  stats::setNames(found, factors)
}

# What a site changes in its table before it is read: missing_values are arrays, all else as given.
harmonise_lines <- function(harmonise) {
  unlist(lapply(names(harmonise), function(site) {
    keys <- harmonise[[site]]
    keys$missing_values <- if (!is.null(keys$missing_values)) lapply(keys$missing_values, I)
    c(sprintf("[harmonise.%s]", toml_string(site)),
      sprintf("%s = %s", names(keys), vapply(keys, toml_value, "")))
  }))
}

cons_study <- function(formula, sites, family = "bernoulli", priors = NULL,
                       folder = tempfile("study-"), title = NULL, chains = 4L, seed = 1L,
                       algorithm = c(name = "few_rounds"), secure_sums = NULL, ...,
                       harmonise = NULL) {
  model <- list(...)
  if (length(model) && (is.null(names(model)) || any(!nzchar(names(model))))) {
    stop("further arguments are keys of [model], by name: missing = \"complete\".", call. = FALSE)
  }
  if (is.null(names(sites)) || any(!nzchar(names(sites))) || anyDuplicated(names(sites))) {
    stop("sites: give a list with the name of each site.", call. = FALSE)
  }
  if (length(strays <- setdiff(names(harmonise), names(sites)))) {
    stop("harmonise: there is no site ", toString(strays), ".", call. = FALSE)
  }
  if (!is.null(priors) && is.null(names(priors))) {
    stop("priors: give names, as in c(coefficients = \"normal(0, 1)\").", call. = FALSE)
  }
  factors <- levels_of(sites)
  factors <- factors[intersect(names(factors), all.vars(formula))]
  model$levels <- c(model$levels, factors[setdiff(names(factors), names(model$levels))])
  if (!length(model$levels)) model$levels <- NULL
  dir.create(folder, showWarnings = FALSE, recursive = TRUE)
  files <- file.path(folder, paste0(names(sites), ".csv"))
  for (i in seq_along(sites)) {
    if (is.data.frame(sites[[i]])) {
      write.csv(sites[[i]], files[i], row.names = FALSE, na = "", fileEncoding = "UTF-8")
    } else if (is.character(sites[[i]]) && length(sites[[i]]) == 1) {
      # A file that only the site has may be absent here.
      if (file.exists(sites[[i]])) file.copy(sites[[i]], files[i], overwrite = TRUE)
    } else {
      stop("sites: ", names(sites)[i], " is neither a data frame nor a path.", call. = FALSE)
    }
  }
  text <- paste(deparse(formula, width.cutoff = 500L), collapse = " ")
  method <- sprintf("%s = %s", names(algorithm), vapply(algorithm, function(one) {
    number <- suppressWarnings(as.numeric(one))
    if (is.na(number)) toml_string(one) else format(number, digits = 15)
  }, ""))
  lines <- c(
    if (!is.null(title)) paste("title =", toml_string(title)),
    "[data]",
    sprintf("files = [%s]", paste(toml_string(basename(files)), collapse = ", ")),
    harmonise_lines(harmonise),
    "[model]",
    paste("formula =", toml_string(text)),
    paste("family =", toml_string(family)),
    if (!is.null(priors)) paste("prior =", toml_value(priors)),
    sprintf("%s = %s", names(model), vapply(model, toml_value, "")),
    "[algorithm]",
    method,
    "[run]",
    sprintf("chains = %d", as.integer(chains)),
    sprintf("seed = %d", as.integer(seed)),
    if (!is.null(secure_sums)) paste("secure_sums =", tolower(isTRUE(secure_sums))),
    "[output]",
    "figure = false"
  )
  path <- file.path(folder, "study.toml")
  writeLines(enc2utf8(lines), path, useBytes = TRUE)
  structure(list(path = path, sites = names(sites)), class = "cons_study")
}

print.cons_study <- function(x, ...) {
  cat("study of", length(x$sites), "sites:", x$path, "\n")
  cat(readLines(x$path, encoding = "UTF-8"), sep = "\n")
  invisible(x)
}

cons_example <- function(name, folder = tempfile("example-")) {
  run_command(c("examples", name, "--to", folder), quiet = TRUE)
  made <- file.path(folder, name)
  if (dir.exists(made)) made else folder
}

study_path <- function(study) if (inherits(study, "cons_study")) study$path else study

cons_check <- function(study) {
  run_command(c("check", study_path(study)))
}

cons_run <- function(study, output = tempfile("run-"), quiet = TRUE) {
  words <- c("run", study_path(study), "--output", output, "--no-reference")
  run_command(c(words, if (quiet) "--quiet"), quiet = quiet)
  result_of(output)
}
