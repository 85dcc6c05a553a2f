# Draws of a posterior, and what R makes of them.

result_of <- function(run) {
  file <- tempfile("draws-", fileext = ".csv")
  on.exit(unlink(file))
  run_command(c("export", run, file), quiet = TRUE)
  draws <- read.csv(file, check.names = FALSE, encoding = "UTF-8")
  texts <- file.path(run, c("summary.txt", "estimates.txt"))
  text <- unlist(lapply(texts[file.exists(texts)], readLines, encoding = "UTF-8"))
  structure(list(run = run, draws = draws, text = text), class = "cons_result")
}

summary_json <- function(x) readLines(file.path(x$run, "summary.json"), encoding = "UTF-8")

# Values of lines `"key": value` of a JSON file at one depth, which Python indents by a space a level.
json_values <- function(lines, key, depth) {
  start <- sprintf("^ {%d}\"%s\": ", depth, key)
  lines <- grep(start, lines, value = TRUE)
  # Escapes of JSON are those of R; a string is parsed and never evaluated.
  vapply(sub(",$", "", sub(start, "", lines)), function(one) {
    if (one == "null") NA_character_ else as.character(parse(text = one, keep.source = FALSE)[[1]])
  }, "", USE.NAMES = FALSE)
}

verdict <- function(x) {
  factor(json_values(summary_json(x), "verdict", 1), levels = c("good", "care", "bad", "unknown"))
}

# What the verdict was made of: a row for each question.
checks <- function(x) {
  lines <- summary_json(x)
  lines <- lines[seq_along(lines) < which(grepl("^ \\],?$", lines))[1]]
  keys <- c("verdict", "title", "value", "reason", "action")
  as.data.frame(stats::setNames(lapply(keys, json_values, lines = lines, depth = 3), keys))
}

glance <- function(x, ...) UseMethod("glance")

glance.cons_result <- function(x, ...) {
  lines <- summary_json(x)
  data.frame(verdict = verdict(x), chains = length(unique(x$draws$chain)), draws = nrow(x$draws),
             parameters = length(parameters_of(x)),
             r.hat = as.numeric(json_values(lines, "r_hat", 2)),
             ess = as.numeric(json_values(lines, "ess", 2)))
}

coef.cons_result <- function(object, ...) {
  shown <- grep("^(coefficients|intercept|effects)", parameters_of(object), value = TRUE)
  vapply(object$draws[shown], mean, 0)
}

# Predictions for new rows: at a site, or at one that is not in the study.
predict.cons_result <- function(object, newdata, site = NULL, at = NULL, ...) {
  rows <- newdata
  if (is.data.frame(newdata)) {
    rows <- tempfile("rows-", fileext = ".csv")
    on.exit(unlink(rows))
    write.csv(newdata, rows, row.names = FALSE, na = "", fileEncoding = "UTF-8")
  }
  file <- tempfile("predictions-", fileext = ".csv")
  on.exit(unlink(file), add = TRUE)
  run_command(c("export", object$run, file, "--rows", rows,
                if (!is.null(site)) c("--site", site),
                if (!is.null(at)) c("--at", paste(format(at, digits = 15, trim = TRUE), collapse = ","))),
              quiet = TRUE)
  read.csv(file, check.names = FALSE, encoding = "UTF-8")
}

parameters_of <- function(x) setdiff(names(x$draws), c("chain", "draw"))

print.cons_result <- function(x, ...) {
  cat(x$text, sep = "\n")
  invisible(x)
}

summary.cons_result <- function(object, probs = c(0.025, 0.5, 0.975), ...) {
  values <- object$draws[parameters_of(object)]
  found <- t(vapply(values, function(one) c(mean(one), sd(one), quantile(one, probs)),
                    numeric(2 + length(probs))))
  colnames(found) <- c("mean", "sd", paste0(100 * probs, "%"))
  as.data.frame(found)
}

tidy <- function(x, ...) UseMethod("tidy")

tidy.cons_result <- function(x, conf.level = 0.95, exponentiate = FALSE, ...) {
  tail <- (1 - conf.level) / 2
  table <- summary(x, probs = c(tail, 1 - tail))
  made <- data.frame(term = rownames(table), estimate = table$mean, std.error = table$sd,
                     conf.low = table[[3]], conf.high = table[[4]])
  if (exponentiate) {
    # Ratios are made of coefficients and effects, not of sds, correlations or thresholds.
    ratios <- grepl("^(coefficients|intercept|effects)", made$term)
    shown <- c("estimate", "conf.low", "conf.high")
    made[ratios, shown] <- exp(made[ratios, shown])
  }
  made
}

as.data.frame.cons_result <- function(x, ...) x$draws

as_draws_df <- function(x, ...) UseMethod("as_draws_df")

as_draws_df.cons_result <- function(x, ...) {
  if (!requireNamespace("posterior", quietly = TRUE)) {
    stop("install the package posterior for as_draws_df.", call. = FALSE)
  }
  draws <- x$draws
  names(draws)[1:2] <- c(".chain", ".iteration")
  posterior::as_draws_df(draws)
}

as_draws <- function(x, ...) UseMethod("as_draws")

as_draws.cons_result <- function(x, ...) as_draws_df(x, ...)

plot.cons_result <- function(x, conf.level = 0.95, ...) {
  shown <- tidy(x, conf.level)
  at <- rev(seq_len(nrow(shown)))
  before <- par(mar = c(4, 10, 1, 1))
  on.exit(par(before))
  plot(range(shown$conf.low, shown$conf.high), range(at) + c(-0.5, 0.5), type = "n",
       xlab = "", ylab = "", yaxt = "n", ...)
  abline(v = 0, lty = 3)
  segments(shown$conf.low, at, shown$conf.high, at)
  points(shown$estimate, at, pch = 19)
  axis(2, at, shown$term, las = 1)
  invisible(shown)
}
