# What a site, or the coordinator, does before a study: keys, a policy, a rehearsal; and its ledger.

# The line that a key is known by, for `cons_identities`.
cons_key <- function(folder, site = NULL) {
  said <- run_command(c("site", "key", folder, if (is.null(site)) "--coordinator" else c("--site", site)),
                      quiet = TRUE)
  utils::tail(said[nzchar(said)], 1)
}

# The coordinator's file of all public keys; the lines are compared by telephone.
cons_identities <- function(keys, coordinator, sites) {
  file <- file.path(keys, "identities.toml")
  writeLines(c(coordinator, "[identities]", sites), file)
  file
}

# The policy that is proposed for a study, in the site's folder: to be read, and tightened.
cons_policy <- function(study, data, identities, folder) {
  said <- run_command(c("site", "check", "--study", study_path(study), "--data", data,
                        "--identities", identities), quiet = TRUE)
  file <- file.path(folder, "site-policy.toml")
  writeLines(said, file)
  file
}

cons_rehearse <- function(study, data) {
  run_command(c("site", "rehearse", "--study", study_path(study), "--data", data))
}

cons_ledger <- function(folder) run_command(c("site", "ledger", folder))

cons_describe <- function(study) run_command(c("describe", study_path(study)))

cons_register <- function(study) run_command(c("register", study_path(study)))

cons_report <- function(result, ...) {
  run_command(c("report", if (inherits(result, "cons_result")) result$run else result, ...))
}
