# A study by letters: the coordinator's commands, and a site's.

cons_letter_open <- function(study, folder, shared = file.path(folder, "post"), keys = NULL) {
  run_command(c("letter", "open", study_path(study), "--folder", folder, "--shared", shared,
                if (!is.null(keys)) c("--keys", keys)))
  invisible(folder)
}

# A person decides in the console, unless yes = TRUE.
cons_letter_answer <- function(request, data = NULL, folder = NULL, policy = NULL, yes = FALSE) {
  words <- c("letter", "answer", request, if (!is.null(data)) c("--data", data),
             if (!is.null(folder)) c("--folder", folder),
             if (!is.null(policy)) c("--policy", policy))
  if (yes) return(run_command(c(words, "--yes")))
  if (!interactive()) {
    stop("somebody must permit the answer: give yes = TRUE, or call it in a console.",
         call. = FALSE)
  }
  command <- consortia_command()
  status <- system2(command[1], shQuote(c(command[-1], words)))
  if (status != 0) stop("nothing was answered (exit code ", status, ")", call. = FALSE)
  invisible(NULL)
}

# The result once the study has ended; NULL while answers are awaited.
cons_letter_next <- function(folder, answers = character()) {
  run_command(c("letter", "next", folder, answers))
  if (file.exists(file.path(folder, "run", "summary.txt"))) result_of(file.path(folder, "run"))
}
