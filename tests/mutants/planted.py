"""Planted mutants, one or more in each room of the source, each with the test that kills it."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One change of one line that a named test must notice.

    Attributes:
        file: below ``src/consortia``.
        old: text that stands there exactly once.
        new: what takes its place.
        killer: the test, below ``tests``, that then fails.
    """

    file: str
    old: str
    new: str
    killer: str


MUTANTS = (
    Mutant(
        "models/regression/families.py",
        "return _y(batch, eta) - p, p * (p - 1)",
        "return _y(batch, eta) - p, p * (1 - p)",
        "models/regression/test_evaluation.py::"
        "test_slopes_are_those_of_the_log_likelihood[bernoulli]",
    ),
    Mutant(
        "models/_integrated.py",
        "values, xp = _at_nodes(density, (mode, spread), points, weights)",
        "values, xp = _at_nodes(density, (mode, spread), points[::2], weights[::2])",
        "models/regression/test_integrated.py::"
        "test_the_likelihood_of_a_site_is_the_integral_over_its_level[poisson]",
    ),
    Mutant(
        "models/_integrated.py",
        "weights = xp.concatenate([last_weight[None], log_p - log_q])",
        "weights = xp.concatenate([last_weight[None], log_p])",
        "models/regression/test_integrated.py::test_resampled_levels_have_the_law_of_a_grid",
    ),
    Mutant(
        "models/regression/evaluation.py",
        'kept.get("weight", 1.0) * counts[order]',
        'kept.get("weight", 1.0) * (counts[order] > 0)',
        "models/regression/test_evaluation.py::test_equal_rows_are_one_row_with_a_count",
    ),
    Mutant(
        "models/regression/evaluation.py",
        "for at in range(0, self._size, ROWS_AT_ONCE):",
        "for at in range(0, self._size - self._size % ROWS_AT_ONCE, ROWS_AT_ONCE):",
        "models/regression/test_evaluation.py::test_sums_and_blocks_of_rows_are_the_sums_over_rows",
    ),
    Mutant(
        "surrogates/local_fits.py",
        "return float(square - pull @ mean) / ((sites - 1) * len(pull))",
        "return 0.0",
        "statistical/test_several.py::"
        "test_the_scalar_of_the_sites_says_whether_they_ended_together",
    ),
    Mutant(
        "dynamics/ensemble/chains.py",
        "rates = np.exp(-np.maximum(errors, 0))",
        "rates = np.exp(-np.maximum(errors / 2, 0))",
        "dynamics/test_ensemble.py::"
        "test_chains_have_the_law_of_the_posterior_unless_all_is_accepted",
    ),
    Mutant(
        "surrogates/proposals/mixture.py",
        "normals /= np.sqrt(squares / freedom(d))[:, None]",
        "normals /= np.sqrt(squares / (freedom(d) + 1))[:, None]",
        "algorithms/test_few_rounds.py::"
        "test_a_t_on_a_gaussian_has_its_closed_acceptance_share_and_autocorrelation",
    ),
    Mutant(
        "dynamics/independence.py",
        "if level < log_weight - weight:",
        "if level < np.inf:",
        "algorithms/test_few_rounds.py::"
        "test_its_draws_are_those_of_the_gaussian_with_their_heights",
    ),
    Mutant(
        "surrogates/proposals/proposal.py",
        "return envelope, np.clip(ratio, self.floor, self.cap)",
        "return envelope, np.maximum(ratio, self.floor)",
        "algorithms/test_few_rounds.py::"
        "test_a_proposal_is_normalised_and_its_draws_have_its_density",
    ),
    Mutant(
        "surrogates/proposals/warp.py",
        "volume -= np.log(_curve(knots)(z[:, index])[1])",
        "volume -= 0 * np.log(_curve(knots)(z[:, index])[1])",
        "algorithms/test_few_rounds.py::"
        "test_coordinates_are_inverted_and_their_volumes_are_those_of_differences",
    ),
    Mutant(
        "surrogates/proposals/flow.py",
        "volume -= log_scale",
        "volume -= 0 * log_scale",
        "algorithms/test_few_rounds.py::"
        "test_coordinates_are_inverted_and_their_volumes_are_those_of_differences",
    ),
    Mutant(
        "algorithms/few_rounds/algorithm.py",
        'arrays["accepted"] = accepted.astype(np.int32)',
        'arrays["accepted"] = (accepted + 1).astype(np.int32)',
        "algorithms/test_few_rounds.py::test_the_points_of_a_message_are_those_of_the_server",
    ),
    Mutant(
        "algorithms/few_rounds/algorithm.py",
        "weights = heights[:count] - sent.log_density",
        "weights = heights[:count] - mixture.log_density(mixture.fit_mixture(sent.points, "
        "heights[:count] - sent.log_density, 1, server.rng), sent.points)",
        "algorithms/test_few_rounds.py::"
        "test_a_spoiled_surrogate_slows_the_chains_and_does_not_move_their_law",
    ),
    Mutant(  # directions that rounding loses are not rounded again
        "surrogates/fit_rounding.py",
        "turn = (axes.T / diagonal) @ turn",
        "turn = turn + 0 * axes",
        "surrogates/test_fit_rounding.py::"
        "test_a_fit_of_collinear_columns_is_right_in_every_direction",
    ),
    Mutant(  # what rounding has moved is multiplied by a far reference
        "surrogates/fit_rounding.py",
        "if usable:  # of the rounded A",
        "if count > 1:  # of the rounded A",
        "surrogates/test_fit_rounding.py::"
        "test_a_fit_of_collinear_columns_is_right_in_every_direction",
    ),
    Mutant(  # the mode of a fit is measured as if its pull left
        "surrogates/fit_rounding.py",
        "far = modes - given_others if varies.any() else None",
        "far = modes - given_others",
        "hostile/test_settled_levels.py::"
        "test_what_a_fit_without_a_spread_gives_away_is_its_mode_in_turned_coordinates",
    ),
    Mutant(  # what earlier answers told is forgotten
        "engines/messages/accounts.py",
        "stacked = np.concatenate([self.root, ",
        "stacked = np.concatenate([0 * self.root, ",
        "hostile/test_settled_rows.py::test_what_answers_settle_adds_up_over_answers_and_runs",
    ),
    Mutant(  # values about which more was said than is noted are unknown anew
        "engines/messages/accounts.py",
        "known[: len(study.rows), column] |= known_before",
        "known[: len(study.rows), column] |= False & known_before",
        "hostile/test_joint_accounts.py::"
        "test_an_answer_about_a_large_file_looks_at_the_rows_of_those_before",
    ),
    Mutant(  # a row's value is unknown by itself and as a part of a sum
        "engines/messages/settled.py",
        "if weights[chosen].any():",
        "if weights[chosen].sum() is None:",
        "hostile/test_joint_accounts.py::"
        "test_an_answer_about_a_large_file_looks_at_the_rows_of_those_before",
    ),
    Mutant(  # a run's first answers keep to shares of what nobody has told
        "engines/messages/conversing.py",
        "share = spent + (1 - spent) * SHARES[",
        "share = spent * 0 + SHARES[",
        "hostile/test_differences.py::test_fits_of_a_later_study_keep_their_digits",
    ),
    Mutant(  # categorical values count as unknown where measured ones are judged
        "engines/messages/settled.py",
        'np.argsort(~measured, kind="stable"), int(measured.sum())',
        'np.argsort(measured, kind="stable"), int((~measured).sum())',
        "hostile/test_settled_rows.py::"
        "test_one_factor_has_the_uncertainty_of_measured_and_of_all_values[products]",
    ),
    Mutant(  # where sites add noise, points far out count as much as those of the bulk
        "surrogates/proposals/regression.py",
        "noise = relative * np.hypot(NOISE, added)",
        "noise = np.hypot(NOISE * relative, added)",
        "algorithms/test_few_rounds.py::test_noise_of_sites_leaves_a_surrogate_its_bulk",
    ),
    Mutant(  # scores of plain densities without their volume
        "surrogates/proposals/unbent.py",
        "return z, -self.tail.log_slope(z).sum(axis=1)",
        "return z, 0 * self.tail.log_slope(z).sum(axis=1)",
        "models/regression/test_scores.py::test_scores_can_be_unbent_and_back",
    ),
    Mutant(  # a rise is ignored
        "surrogates/several_modes.py",
        "return lowest - fall > valley + ROUNDED * lowest",
        "return lowest < 0",
        "surrogates/test_several_modes.py::test_a_rise_is_the_highest_place_behind_a_valley",
    ),
    Mutant(  # every way leads uphill
        "surrogates/several_modes.py",
        "cut_off = higher or all(",
        "cut_off = higher and all(",
        "surrogates/test_several_modes.py::test_a_rise_at_another_mode_has_no_way_uphill",
    ),
    Mutant(  # the tail of a prior is left out
        "surrogates/proposals/rays.py",
        "(falls[1:] < POWER * falls[:-1]).all()",
        "(falls[1:] < 0 * falls[:-1]).all()",
        "surrogates/test_ray_bounds.py::test_a_tail_like_a_power_is_seen_on_a_ray",
    ),
    Mutant(  # the same, far out along a parameter
        "surrogates/proposals/rays.py",
        "if (falls[1:] > 2 * np.maximum(falls[:-1], 0.0)).any():",
        "if (falls[1:] > 0 * falls[:-1]).any():",
        "surrogates/test_ray_bounds.py::test_a_slow_tail_is_seen_far_out_with_its_share",
    ),
    Mutant(  # the same, of a formula
        "models/regression/scores.py",
        "slopes = tail.log_slope(sampled[name + SUFFIX])",
        "slopes = 0 * sampled[name + SUFFIX]",
        "statistical/test_separation.py::test_a_run_as_usual_reaches_a_separated_effect",
    ),
    Mutant(  # chains that agree at one mode
        "diagnostics/other_modes.py",
        "rises = several_modes.rises(profiles, centre)",
        "rises = several_modes.rises(profiles[:0], centre)",
        "diagnostics/test_other_modes.py::"
        "test_a_mode_that_no_chain_has_visited_is_unknown_with_its_place",
    ),
    Mutant(  # a rule is measured where no draw is
        "surrogates/quadrature.py",
        "places.append(draws[ranks].mean(axis=0))",
        "places.append(draws[ranks].mean(axis=0) * 2)",
        "run/test_quadrature.py::test_a_rule_is_measured_where_draws_are",
    ),
    Mutant(  # rays reach to where sums have no digits
        "surrogates/proposals/rays.py",
        "prior.reach(side, PRIOR_DROP) /",
        "prior.reach(side, 1e9) /",
        "surrogates/test_ray_bounds.py::"
        "test_first_rays_end_with_the_prior_and_half_lines_have_no_points_beyond",
    ),
    Mutant(  # lines end before the prior does
        "surrogates/several_modes.py",
        "WIDEST = 2.5",
        "WIDEST = 0.1",
        "surrogates/test_several_modes.py::test_lines_reach_to_where_the_prior_does",
    ),
    Mutant(  # what the exploration saw where no proposal is, is ignored
        "surrogates/several_modes.py",
        "share = float(normalised(before.log_weights)[beyond].sum())",
        "share = 0.0",
        "surrogates/test_several_modes.py::"
        "test_points_that_a_proposal_does_not_reach_are_uncovered_with_their_mass",
    ),
    Mutant(  # a mode without draws is not told
        "surrogates/several_modes.py",
        "shares > FORGOTTEN",
        "shares > 2",
        "surrogates/test_several_modes.py::test_a_mode_without_draws_is_unknown_with_its_place",
    ),
    Mutant(
        "surrogates/proposals/batches.py",
        "self.depth <= 2 * self.chains.draws.shape[2] + 10",
        "self.depth <= math.inf",
        "algorithms/test_few_rounds.py::test_a_batch_that_something_speaks_against_does_not_count",
    ),
    Mutant(
        "surrogates/proposals/batches.py",
        "and self.effective >= LEAST_OF_SHARE * self.share * self.chains.heights.size",
        "and self.effective >= 0",
        "algorithms/test_few_rounds.py::test_a_batch_that_something_speaks_against_does_not_count",
    ),
    Mutant(
        "algorithms/few_rounds/algorithm.py",
        "del batches[earlier:]",
        "del batches[:0]",
        "algorithms/test_few_rounds.py::"
        "test_batches_of_a_proposal_that_a_later_batch_speaks_against_are_not_kept",
    ),
    Mutant(
        "algorithms/few_rounds/algorithm.py",
        "- math.log(len(means)) - server.height",
        "- math.log(len(means))",
        "algorithms/test_few_rounds.py::test_the_log_evidence_of_a_gaussian_model_is_the_exact_one",
    ),
    Mutant(
        "surrogates/proposals/regression.py",
        "solve_triangular(root.T, beta[1 : 1 + d])",
        "solve_triangular(root, beta[1 : 1 + d], lower=True)",
        "surrogates/test_many_parameters.py::"
        "test_a_quadratic_regression_finds_a_gaussian_from_points_of_another",
    ),
    Mutant(
        "surrogates/mode_search.py",
        "if scaled.values[0] < 0:",
        "if scaled.values[0] < -np.inf:",
        "surrogates/test_mode_search.py::test_a_saddle_is_left",
    ),
    Mutant(
        "algorithms/federated_hmc/__init__.py",
        "REACH = 5.0",
        "REACH = 500.0",
        "hostile/test_reading_rows.py::"
        "test_a_study_that_learns_its_steps_keeps_within_the_policy_that_is_proposed",
    ),
    Mutant(
        "core/random.py",
        "(high * size_high + (middle >> half) + (carry >> half))",
        "(high * size_high + (middle >> half))",
        "core/test_random.py::test_below_is_the_exact_product_in_64_bits",
    ),
    Mutant(
        "core/random.py",
        "candidate = below(word, limit + 1)",
        "candidate = below(word, limit)",
        "core/test_random.py::test_rows_without_replacement_are_uniform_over_subsets",
    ),
    Mutant(
        "algorithms/fa_hmc.py",
        "inner_steps = method.lengths[0] - 1\n\n"
        "    def force(rows: PyTree, theta: Array) -> Array:\n"
        "        return method.mass_matrix.solve(evaluate(rows, theta) / weight",
        "inner_steps = method.lengths[0] - 1\n\n"
        "    def force(rows: PyTree, theta: Array) -> Array:\n"
        "        return method.mass_matrix.solve(evaluate(rows, theta)",
        "algorithms/test_fa_hmc.py::test_rounds_equal_the_published_algorithm_by_hand",
    ),
    Mutant(
        "gradients/__init__.py",
        "jnp.where(active, replacement - at_anchor, 0)",
        "jnp.where(active, replacement, 0)",
        "gradients/test_oracles.py::"
        "test_at_the_anchor_a_control_variate_is_the_replacement_whatever_the_rows",
    ),
    Mutant(
        "dynamics/leapfrog.py",
        "velocity = velocity - step_size / 2 * force(",
        "velocity = velocity - step_size * force(",
        "dynamics/test_leapfrog.py::test_leapfrog_is_the_printed_algorithm_with_2k_minus_1_draws",
    ),
    Mutant(
        "schedules/values.py",
        "self.initial * jnp.exp2(-0.5 *",
        "self.initial * jnp.exp2(-1.0 *",
        "schedules/test_schedules.py::"
        "test_stages_double_in_length_and_fall_by_the_square_root_of_two",
    ),
    Mutant(
        "graphs/weights.py",
        "weights = 1.0 / (1.0 + larger)",
        "weights = 1.0 / (2.0 + larger)",
        "graphs/test_graphs.py::test_metropolis_weights_are_those_of_the_degrees",
    ),
    Mutant(
        "surrogates/examination.py",
        "** (2 * settings.local_steps)",
        "** settings.local_steps",
        "surrogates/test_surrogates.py::test_the_mean_square_factor_is_that_of_the_exact_law",
    ),
    Mutant(
        "surrogates/newton.py",
        "xp.where(size > 0, size, 1)",
        "xp.where(size > 0, xp.max(size), 1)",
        "surrogates/test_modes.py::test_a_mode_is_found_from_any_start_whatever_the_units"
        "[in_one_program]",
    ),
    Mutant(
        "surrogates/proposals/rays.py",
        "(self.direction + self.steps[:, None] * self.bend)",
        "(self.direction + 0 * self.steps[:, None] * self.bend)",
        "surrogates/test_ray_bounds.py::"
        "test_what_a_proposal_lacks_of_a_bent_tail_is_seen_on_a_parabola_alone",
    ),
    Mutant(
        "theory/stability.py",
        "2.0 * math.sin(math.pi / (4 *",
        "2.0 * math.sin(math.pi / (2 *",
        "theory/test_stability.py::test_a_stale_step_is_refused_where_its_law_is_not_stable",
    ),
    Mutant(
        "engines/exchanges.py",
        "lambda leaf: jnp.sum(leaf, axis=0), outbox",
        "lambda leaf: jnp.mean(leaf, axis=0), outbox",
        "engines/test_exchanges.py::test_sum_is_plain_whatever_the_weights",
    ),
    Mutant(
        "schedules/events.py",
        "free = now = now + cost",
        "free = now",
        "engines/test_events.py::test_a_server_that_takes_time_serves_one_worker_after_the_other",
    ),
    Mutant(
        "run/execution.py",
        "engine.allgather(described, lambda: task.common(target, algorithm, positions))",
        "(engine.barrier(), engine.allgather(described, lambda: task.common(target, algorithm, "
        "positions)))[1]",
        "parity/test_mpi_runs.py::"
        "test_all_ranks_meet_three_times_before_the_first_round_and_hear_there_what_is_wrong",
    ),
    Mutant(
        "engines/mpi/wire.py",
        "starts[kind] = start + width",
        "starts[kind] = start",
        "parity/test_mpi.py::test_the_draws_are_the_same_where_the_host_carries_messages",
    ),
    Mutant(
        "engines/messages/asking.py",
        "if arrival.sender != self.node[site]:",
        "if site not in self.node:",
        "parity/test_flower_faults.py::"
        "test_hundreds_of_bad_replies_are_rejected_and_named_and_the_draws_are_right",
    ),
    Mutant(
        "data/partition.py",
        'shuffled[np.argsort(labels[shuffled], kind="stable")]',
        "shuffled",
        "data/test_partition.py::test_label_shards_give_a_site_few_labels",
    ),
    Mutant(
        "run/stopping.py",
        "time.monotonic() - started >= self.budget",
        "time.monotonic() - started < self.budget",
        "engines/test_phases.py::test_a_stopping_rule_is_judged_whatever_the_draws_of_an_iteration",
    ),
    Mutant(
        "store/container.py",
        "!= view[DIGEST]:",
        '== b"":',
        "store/test_container.py::test_malformed_content_is_refused",
    ),
    Mutant(
        "study/tables.py",
        "float(agreed.y.sd)",
        "1.0",
        "study/test_build.py::test_a_measured_response_is_scaled_on_request",
    ),
    Mutant(
        "dynamics/rank_statistics.py",
        "(rank - 0.375)",
        "(rank - 0.25)",
        "diagnostics/test_convergence.py::test_numbers_equal_arviz_for_chains_that_disagree",
    ),
    Mutant(
        "report/run_report.py",
        "worst = int(np.abs(shift).argmax())",
        "worst = int(np.abs(shift).argmin())",
        "report/test_figure.py::test_the_verdict_names_the_parameter_that_is_off",
    ),
    Mutant(
        "diagnostics/verdict.py",
        "if value <= good:",
        "if value <= bad:",
        "report/test_document.py::test_the_number_of_draws_is_judged",
    ),
    Mutant(
        "federation/governance/ledger.py",
        'if record["previous"] != (FIRST if last is None else last.hash):',
        'if record["previous"] == "":',
        "federation/governance/test_ledger.py::test_a_line_that_was_changed_with_its_hash_is_found_by_the_next",
    ),
    Mutant(
        "federation/governance/gate.py",
        "if len(others) >= policy.maximum_answers:",
        "if len(others) > policy.maximum_answers:",
        "federation/governance/test_gate.py::"
        "test_a_place_has_one_answer_and_the_same_question_has_it_again",
    ),
    Mutant(
        "engines/messages/plausible.py",
        "len(beyond) > len(shares) / 2",
        "len(beyond) >= len(shares) / 3",
        "engines/messages/test_plausible.py::"
        "test_a_message_beyond_a_bound_is_named_and_one_within_it_is_not",
    ),
    Mutant(
        "federation/rehearsal/membership.py",
        "np.sqrt(effective * variance)",
        "np.sqrt(effective) * variance",
        "hostile/test_reading_rows.py::"
        "test_the_chance_to_be_found_out_is_that_of_the_likelihood_ratio",
    ),
    Mutant(
        "models/_shared.py",
        "jax.nn.logsumexp(scores, axis=-1)",
        "jnp.max(scores, axis=-1)",
        "models/test_softmax.py::"
        "test_the_density_is_the_categorical_one_and_the_prior_is_normalised",
    ),
    Mutant(
        "cli/exits.py",
        "(NonFiniteError, 4),",
        "(NonFiniteError, 3),",
        "cli/test_run.py::test_a_chain_that_turns_non_finite_ends_the_run_and_keeps_the_draws",
    ),
    Mutant(
        "runtime/garbage.py",
        "gc.set_threshold(*before)",
        "gc.set_threshold(*SELDOM)",
        "runtime/test_garbage.py::test_it_is_as_before_after_an_error",
    ),
    Mutant(
        "engines/flower/grid.py",
        'ERRORS.get(reply.error.code, "Flower has an error for it")',
        "reply.error.reason",
        "engines/flower/test_grid.py::test_a_grid_gives_bytes_and_no_text_of_an_error",
    ),
    Mutant(
        "engines/letters/sealing.py",
        "if not hmac.compare_digest(given.encode(), _seal_of(letter, key).encode()):",
        "if not given:",
        "federation/test_letters.py::"
        "test_a_false_answer_is_refused_by_name_and_the_right_one_taken",
    ),
    Mutant(
        "core/privacy.py",
        "return self.sd / math.sqrt(max(math.floor(self.honest * sites), 1))",
        "return self.sd / math.sqrt(sites)",
        "algorithms/test_private_posterior.py::test_without_sums_each_site_has_all_of_the_noise",
    ),
    Mutant(
        "study/used_rows.py",
        "train, _ = split_rows(required(_numbered(table), data, name), data, index)",
        "train = required(_numbered(table), data, name)",
        "hostile/test_differences.py::"
        "test_a_study_that_holds_one_patient_out_then_another_one[complete]",
    ),
)
