# Three hospitals, one table each. The patients are made up.
names <- c("north", "south", "west")
tables <- file.path(system.file("hospitals", package = "consortia"), paste0(names, ".csv"))
names(tables) <- names
study <- cons_study(ill ~ age + dose + weight, as.list(tables),
                    priors = c(coefficients = "normal(0, 1)"))
cons_check(study)

# In one process, to try it out.
result <- cons_run(study)
print(tidy(result))
plot(result)

# By letters, as between hospitals, with keys and masked sums: the draws have the same law.
root <- tempfile("letters-")
folder <- file.path(root, "coordinator")
own <- setNames(file.path(root, "sites", names), names)
keys <- file.path(root, "keys")
lines <- vapply(names, function(name) cons_key(own[[name]], name), "")
identities <- cons_identities(keys, cons_key(keys), lines)
for (name in names) cons_policy(study, tables[[name]], identities, own[[name]])
cons_letter_open(study, folder, keys = keys)
by_letters <- NULL
while (is.null(by_letters)) {
  for (name in names) {
    letters <- sort(list.files(file.path(folder, "post", name), "^question", full.names = TRUE))
    cons_letter_answer(utils::tail(letters, 1), data = tables[[name]],
                       folder = own[[name]], yes = TRUE)
  }
  by_letters <- cons_letter_next(folder)
}
print(tidy(by_letters))
