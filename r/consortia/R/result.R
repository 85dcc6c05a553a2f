# Draws of a posterior, and what R makes of them.

result_of <- function(run) {
  file <- tempfile("draws-", fileext = ".csv")
  on.exit(unlink(file))
  run_command(c("export", run, file), quiet = TRUE)
  draws <- read.csv(file, check.names = FALSE, encoding = "UTF-8")
  said <- file.path(run, c("summary.txt", "estimates.txt"))
  text <- unlist(lapply(said[file.exists(said)], readLines, encoding = "UTF-8"))
  structure(list(run = run, draws = draws, text = text), class = "cons_result")
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
  found <- summary(x, probs = c(tail, 1 - tail))
  made <- data.frame(term = rownames(found), estimate = found$mean, std.error = found$sd,
                     conf.low = found[[3]], conf.high = found[[4]])
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
