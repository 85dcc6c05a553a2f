# Makes gbsg.csv, and prints what tests/models/regression/test_propensity.py expects: estimates and
# robust standard errors of sandwich and survival. Those of survey (svyglm), which divides by n - 1,
# are 0.07 % larger. Last the standardised mean differences before and after.
library(survival)
suppressMessages(library(survey))
library(sandwich)
options(digits = 9)
g <- data.frame(id = gbsg$pid, age = gbsg$age, meno = gbsg$meno, size = gbsg$size,
                grade = paste0("g", gbsg$grade), nodes = gbsg$nodes, pgr = gbsg$pgr,
                arm = ifelse(gbsg$hormon == 1, "hormone", "none"),
                months = ceiling(gbsg$rfstime / 30.4375), event = gbsg$status)
g <- g[order(g$id), ]
g$id <- seq_len(nrow(g))
write.csv(g, "gbsg.csv", row.names = FALSE, quote = FALSE)
weighted <- function(e, a, estimand, trim) {
  e <- pmin(pmax(e, trim), 1 - trim)
  switch(estimand, ATE = ifelse(a, mean(a) / e, mean(!a) / (1 - e)),
         ATT = ifelse(a, 1, e / (1 - e)), overlap = ifelse(a, 1 - e, e))
}
for (sites in c(3, 8)) {
  g$site <- factor(g$id %% sites)
  g$a <- g$arm == "hormone"
  e <- fitted(glm(a ~ age * meno + size + grade + log1p(nodes), binomial, g))
  for (estimand in c("ATE", "ATT", "overlap")) {
    g$w <- weighted(e, g$a, estimand, if (estimand == "ATE") .3 else 0)
    died <- glm(event ~ a + site, quasibinomial(), g, weights = w)
    design <- svydesign(~id, weights = ~w, data = g)
    other <- svyglm(event ~ a + site, design, family = quasibinomial())
    cox <- coxph(Surv(months, event) ~ a + strata(site), g, weights = w, cluster = id)
    cat(sites, estimand, coef(died)["aTRUE"], sqrt(diag(sandwich(died)))["aTRUE"],
        coef(cox), sqrt(diag(cox$var)), "\n")
    cat("survey", coef(other)["aTRUE"], sqrt(diag(vcov(other)))["aTRUE"], "\n")
    g$g3 <- 1 * (g$grade == "g3")
    for (name in c("age", "nodes", "g3")) {
      x <- g[[name]]
      a <- g$a
      sd <- if (name == "g3") sqrt((mean(x[a]) * (1 - mean(x[a])) + mean(x[!a]) * (1 - mean(x[!a]))) / 2)
            else sqrt((var(x[a]) + var(x[!a])) / 2)
      cat(name, (mean(x[a]) - mean(x[!a])) / sd,
          (weighted.mean(x[a], g$w[a]) - weighted.mean(x[!a], g$w[!a])) / sd, "\n")
    }
    for (a in c(TRUE, FALSE)) cat("effective", sum(g$w[g$a == a])^2 / sum(g$w[g$a == a]^2), "")
    cat("\n")
  }
}
