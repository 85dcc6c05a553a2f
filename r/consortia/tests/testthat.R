library(testthat)
library(consortia)
test_check("consortia")
