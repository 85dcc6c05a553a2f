# Three hospitals, one table each. The patients are made up.
names <- c("north", "south", "west")
tables <- file.path(system.file("hospitals", package = "consortia"), paste0(names, ".csv"))
names(tables) <- names
study <- cons_study(ill ~ age + dose + weight, as.list(tables),
                    priors = c(coefficients = "normal(0, 1)"), secure_sums = FALSE)
cons_check(study)

# In one process, to try it out.
result <- cons_run(study)
print(tidy(result))
plot(result)

# By letters, as between hospitals: the draws have the same law. Hospitals with keys of their own
# (consortia site key) leave secure_sums out, and give cons_letter_open their folder.
folder <- tempfile("letters-")
cons_letter_open(study, folder)
for (name in names) {
  dir.create(file.path(folder, "sites", name), recursive = TRUE)
  policy <- c("models = [\"any\"]", "maximum_rounds = 1000", "minimum_rows = 50",
              "messages = [\"description\", \"moments\", \"query\"]", "secure_sums = false")
  writeLines(policy, file.path(folder, "sites", name, "site-policy.toml"))
}
by_letters <- NULL
while (is.null(by_letters)) {
  for (name in names) {
    letters <- sort(list.files(file.path(folder, "post", name), "^question", full.names = TRUE))
    cons_letter_answer(utils::tail(letters, 1), data = tables[[name]],
                       folder = file.path(folder, "sites", name), yes = TRUE)
  }
  by_letters <- cons_letter_next(folder)
}
print(tidy(by_letters))
