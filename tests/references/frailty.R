# Makes rats.csv, kidney.csv and diabetic.csv, and prints what tests/models/regression/test_frailty.py expects:
# maximum likelihood with a normal frailty and a constant hazard between agreed times, by lme4 on
# rows that are split there (the likelihood is that of Poisson counts, integrated by 25 nodes), and
# Cox's model with the same frailty by penalised partial likelihood (survival, frailty.gaussian).
library(survival)
suppressMessages(library(lme4))
options(digits = 9)
r <- rats[rats$sex == "f", ]
r <- data.frame(group = r$litter, time = r$time, event = r$status, a = r$rx, b = 0)
k <- data.frame(group = kidney$id, time = kidney$time, event = kidney$status,
                a = 1 * (kidney$sex == 2), b = kidney$age / 10)
write.csv(r, "rats.csv", row.names = FALSE, quote = FALSE)
write.csv(k, "kidney.csv", row.names = FALSE, quote = FALSE)
e <- data.frame(group = diabetic$id, time = diabetic$time, event = diabetic$status,
                a = diabetic$trt, b = diabetic$risk)  # two eyes a patient
write.csv(e, "diabetic.csv", row.names = FALSE, quote = FALSE)
fitted_to <- function(name, d, cuts, formula) {
  s <- survSplit(Surv(time, event) ~ ., d, cut = cuts, episode = "interval", start = "from")
  s$spent <- s$time - s$from
  s$interval <- factor(s$interval)
  fit <- glmer(formula, s, family = poisson, offset = log(spent), nAGQ = 25,
               control = glmerControl(optimizer = "bobyqa", optCtrl = list(maxfun = 1e5, rhoend = 1e-9)))
  # the likelihood of times lacks the factor spent^event of Poisson counts; with nAGQ > 1 lme4 leaves
  # the saturated part of the deviance out, y - y log y, which is 1 an event
  cat(name, "\n", fixef(fit), "\n", sqrt(diag(as.matrix(vcov(fit)))), "\n",
      sqrt(VarCorr(fit)$group[1]), as.numeric(logLik(fit)) - sum(s$event * (log(s$spent) + 1)), "\n")
}
fitted_to("rats", r, c(60, 75, 90), event ~ 0 + a + interval + (1 | group))
fitted_to("kidney", k, c(15, 30, 100, 200), event ~ 0 + a + b + interval + (1 | group))
fitted_to("diabetic", e, c(6, 18, 36), event ~ 0 + a + b + interval + (1 | group))
fitted_to("kidney of eight sites", transform(k, group = group %/% 5), c(15, 30, 100, 200),
          event ~ 0 + a + b + interval + (1 | group))
# with many cuts the hazard between them is that of Cox's model
fitted_to("rats in ten", r, quantile(r$time[r$event == 1], 1:9 / 10), event ~ 0 + a + interval + (1 | group))
fitted_to("kidney in ten", k, quantile(k$time[k$event == 1], 1:9 / 10), event ~ 0 + a + b + interval + (1 | group))
cox <- coxph(Surv(time, event) ~ a + frailty(group, distribution = "gaussian"), r)
cat("cox rats", coef(cox), sqrt(diag(vcov(cox))), cox$history[[1]]$theta, "\n")
cox <- coxph(Surv(time, event) ~ a + b + frailty(group, distribution = "gaussian"), k)
cat("cox kidney", coef(cox), sqrt(diag(vcov(cox))), cox$history[[1]]$theta, "\n")
cox <- coxph(Surv(time, event) ~ a + b + frailty(group, distribution = "gaussian"), e)
cat("cox diabetic", coef(cox), sqrt(diag(vcov(cox))), cox$history[[1]]$theta, "\n")
