# The command line of the Python package, which does all of the work.

# The command: option consortia.command, else consortia on the PATH.
consortia_command <- function() {
  given <- getOption("consortia.command", Sys.which("consortia"))
  if (!nzchar(given[1])) {
    stop("the command 'consortia' is not on the PATH: install the Python package, ",
         "or give options(consortia.command = \"/path/to/consortia\").", call. = FALSE)
  }
  given
}

# Run a command; show or return what it prints, stop with its own error message.
run_command <- function(words, quiet = FALSE) {
  command <- consortia_command()
  arguments <- c(command[-1], words)
  errors <- tempfile("consortia-errors-")
  on.exit(unlink(errors))
  said <- suppressWarnings(
    system2(command[1], shQuote(arguments), stdout = TRUE, stderr = errors)
  )
  status <- attr(said, "status")
  warned <- readLines(errors, warn = FALSE)
  if (!is.null(status) && status != 0) {
    stop(paste(c(warned, said), collapse = "\n"), " (exit code ", status, ")", call. = FALSE)
  }
  if (!quiet) cat(said, warned, sep = "\n")
  invisible(as.character(said))
}
