# Makes bladder.csv, lung.csv and mgus.csv, and prints what test_weighted_cox.py and test_baseline.py
# of tests/models/regression expect.
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

# absolute risk: cumulative hazards at 6 and 12 months with standard errors, restricted means
patients <- data.frame(age = c(60, 70), sex = c(1, 2), ecog = c(1, 0), site = c(0, 1))
l$site <- l$id %% 3; d$site <- d$id %% 3
for (ties in c("efron", "breslow")) {
  curves <- survfit(coxph(Surv(time, status) ~ age + sex + ecog + strata(site), l, ties = ties), patients)
  for (i in 1:2) {
    at <- summary(curves[i], times = c(6, 12))
    cat("risk", ties, at$cumhaz, at$std.chaz, summary(curves[i], rmean = 12)$table["rmean"], "\n")
  }
}
fit <- coxph(Surv(start, stop, event) ~ rx + number + size + strata(site, enum), d)
at <- summary(survfit(fit, data.frame(rx = 2, number = 2, size = 1, site = 1, enum = 2)), times = c(6, 24))
cat("risk by enum", at$cumhaz, at$std.chaz, "\n")

# competing risks: cause-specific hazards, and Aalen and Johansen's incidence at one site
library(cmprsk)
m <- mgus2[complete.cases(mgus2[, c("age", "sex", "hgb", "mspike")]), ]
set.seed(1)
m <- m[sample(nrow(m), 400), ]
m <- data.frame(id = 1:400, months = ifelse(m$pstat == 0, m$futime, m$ptime),
                cause = ifelse(m$pstat == 0, 2 * m$death, 1), age = m$age, male = 1 * (m$sex == "M"), hgb = m$hgb)
write.csv(m, "mgus.csv", row.names = FALSE, quote = FALSE)
m$site <- m$id %% 3
times <- sort(unique(m$months[m$site == 1]))
steps <- sapply(1:2, function(k) {
  fit <- coxph(Surv(months, cause == k) ~ age + male + strata(site), m)
  diff(c(0, summary(survfit(fit, data.frame(age = 70, male = 1, site = 1)), times = times)$cumhaz))
})
total <- rowSums(steps)
left <- exp(-c(0, cumsum(total)))[seq_along(times)] * (1 - exp(-total)) * ifelse(total > 0, 1, 0)
incidence <- apply(left * steps / ifelse(total > 0, total, 1), 2, cumsum)
for (t in c(60, 120)) cat("incidence", t, incidence[max(which(times <= t)), ], "\n")
print(timepoints(with(m[m$site == 1, ], cuminc(months, cause)), c(60, 120)))

# restricted means to 10 years of the arms of pbc.csv: survRM2's vignette has 7.146 (se 0.283) and
# 7.283 (0.295) of these patients, and a difference of -0.137 (-0.939, 0.665)
p <- pbc[1:312, ]
p <- data.frame(id = 1:312, time = round(p$time / 365.25, 5), died = 1 * (p$status == 2),
                arm = 1 * (p$trt == 1), age = round(p$age, 2))
write.csv(p, "pbc.csv", row.names = FALSE, quote = FALSE)
print(survfit(Surv(time, died) ~ arm, p), print.rmean = TRUE, rmean = 10)

# survival at 1 and 5 years of two patients of gbsg.csv, and restricted means to 5 years
g <- transform(read.csv("gbsg.csv"), arm = factor(arm, c("none", "hormone")))
curves <- survfit(coxph(Surv(months, event) ~ arm + nodes, g), data.frame(arm = c("none", "hormone"), nodes = c(3, 8)))
at <- summary(curves, times = c(12, 60))
cat("risk by breaks", at$surv, at$std.err, summary(curves, rmean = 60)$table[, "rmean"], "\n")
