# Makes bladder.csv and lung.csv, and prints what tests/models/regression/test_weighted_cox.py expects.
library(survival)
options(digits = 9)
set.seed(1)
d <- bladder2[, c("id", "rx", "number", "size", "start", "stop", "event", "enum")]
d$w <- round(runif(nrow(d), .2, 3), 2)
l <- lung[complete.cases(lung[, c("age", "sex", "ph.ecog")]), ]
l <- data.frame(id = seq_len(nrow(l)), time = ceiling(l$time / 30), status = l$status - 1,
                age = l$age, sex = l$sex, ecog = l$ph.ecog)
l$w <- round(runif(nrow(l), .2, 3), 2)
write.csv(d, "bladder.csv", row.names = FALSE, quote = FALSE)
write.csv(l, "lung.csv", row.names = FALSE, quote = FALSE)
said <- function(what, sites, fit) {
  cat(what, sites, "\n", coef(fit), "\n", sqrt(diag(fit$var)), "\n")
}
for (sites in c(3, 8)) for (ties in c("efron", "breslow")) {
  d$site <- d$id %% sites; l$site <- l$id %% sites
  start_stop <- Surv(d$start, d$stop, d$event)
  said(paste("bladder", ties), sites, coxph(
    start_stop ~ rx + number + size + strata(site), d, weights = w, ties = ties, cluster = id))
  said(paste("by enum", ties), sites, coxph(
    start_stop ~ rx + number + size + strata(site, enum), d, weights = w, ties = ties, cluster = id))
  said(paste("lung", ties), sites, coxph(
    Surv(time, status) ~ age + sex + ecog + strata(site), l, weights = w, ties = ties, cluster = id))
}
