"""Each row of the tables in docs/coming-from-torchrl.md names the tests that hold it."""

import re
from pathlib import Path

import pytest

from rollfleet.learner.torchrl_names import ABSENT

COLLECTOR, ROLLOUT = "tests/sdk/collector/test_", "tests/sdk/rollout/test_"
INTEROP, LEARNER = "tests/interop/test_", "tests/sdk/learner/test_"
TESTS = {
    # Replay buffers
    "rollfleet.ReplayBuffer(n, shared=True)": [
        f"{COLLECTOR}shared_buffer.py::test_workers_fill_a_shared_buffer_and_no_batch_goes_through_the_learner"
    ],
    "postproc=": [f"{COLLECTOR}shared_buffer.py::test_with_postproc_the_learner_writes_its_results_into_the_buffer"],
    "extend(frames)": [
        f"{COLLECTOR}learner.py::test_with_a_replay_buffer_the_iterator_fills_it_and_yields_none",
        f"{INTEROP}buffers.py::test_torchrls_buffer_is_filled_by_the_keyword",
    ],
    "any, over NATS or in this process": [
        f"{COLLECTOR}shared_buffer.py::test_a_shared_buffer_works_as_a_replay_buffer_with_every_transport"
    ],
    # Names
    "frames_per_batch": [
        f"{COLLECTOR}amounts.py::test_frames_per_batch_counts_all_workers_and_num_envs_each_worker",
        f"{COLLECTOR}amounts.py::test_frames_that_do_not_divide_among_all_environments_are_rounded_up",
        f"{COLLECTOR}amounts.py::test_in_mode_async_frames_per_batch_counts_one_worker",
        f"{COLLECTOR}amounts.py::test_the_iterator_ends_with_the_batch_that_reaches_total_frames",
        f"{COLLECTOR}amounts.py::test_max_frames_per_traj_truncates_and_begins_a_new_episode",
        f"{COLLECTOR}amounts.py::test_init_random_frames_are_random_and_those_after_them_the_policys",
        f"{COLLECTOR}policies.py::test_the_policy_is_not_called_for_random_frames",
        f"{LEARNER}construction.py::test_minus_1_and_none_mean_no_limit",
    ],
    "num_collectors": [f"{COLLECTOR}amounts.py::test_a_list_of_environments_has_one_for_each_worker"],
    "sync": [f"{COLLECTOR}amounts.py::test_one_async_worker_continues_while_the_learner_is_busy"],
    'cat_results="stack"': [f"{COLLECTOR}amounts.py::test_cat_results_sets_how_workers_fragments_are_joined"],
    "reset_at_each_iter": [
        f"{COLLECTOR}amounts.py::test_reset_at_each_iter_begins_every_batch_with_new_episodes_under_new_ids"
    ],
    "reset_when_done=False": [f"{COLLECTOR}amounts.py::test_without_reset_when_done_the_rest_of_a_row_is_padding"],
    "set_truncated": [f"{COLLECTOR}amounts.py::test_set_truncated_marks_the_last_frame_of_episodes_that_continue"],
    "split_trajs": [
        f"{COLLECTOR}learner.py::test_split_trajs_yields_a_trajectory_a_row",
        f"{COLLECTOR}interrupted.py::test_after_an_error_of_postproc_the_next_call_gives_it_the_same_batch",
        f"{COLLECTOR}interrupted.py::test_a_postproc_that_returns_none_is_an_error",
        f"{INTEROP}layout.py::test_trajectories_are_split_as_torchrl_splits_them",
    ],
    "len(collector)": [
        f"{COLLECTOR}calls.py::test_the_length_is_the_number_of_batches",
        f"{COLLECTOR}calls.py::test_the_length_counts_frames_that_were_rounded_up",
        f"{COLLECTOR}calls.py::test_a_data_loader_yields_its_batches",
    ],
    "traj_format": [f"{COLLECTOR}amounts.py::test_trajectories_may_follow_each_other_without_padding"],
    "exploration_type": [
        f"{COLLECTOR}policies.py::test_a_policy_sees_the_jobs_exploration",
        f"{COLLECTOR}policies.py::test_tensordicts_modules_see_the_jobs_exploration",
        "tests/sdk/policies/test_tensordict_mode.py::test_a_policy_in_the_background_does_not_change_the_learners_"
        "interaction_type",
    ],
    "trajs_per_batch": [
        f"{COLLECTOR}amounts.py::test_trajs_per_batch_gives_whole_trajectories_of_each_worker",
        f"{COLLECTOR}amounts.py::test_step_count_and_is_init_show_a_frames_position_in_its_episode",
    ],
    '("collector", "traj_ids")': [
        f"{ROLLOUT}trajectory_ids.py::test_ids_of_workers_and_incarnations_never_collide",
        f"{ROLLOUT}dense_ids.py::test_a_run_has_every_number_once",
    ],
    "device": [f"{COLLECTOR}policies.py::test_batches_are_put_on_device"],
    "policy_device": [
        f"{COLLECTOR}policies.py::test_policy_and_observations_are_on_policy_device",
        f"{COLLECTOR}gpu.py::test_policy_and_batches_on_the_gpu_give_the_cpus_numbers",
    ],
    "env_device": [
        f"{COLLECTOR}devices.py::test_actions_go_to_env_device_and_tensors_from_there_are_in_the_batch",
        f"{COLLECTOR}devices.py::test_a_list_of_env_devices_has_one_for_each_worker",
        f"{COLLECTOR}devices.py::test_environments_of_arrays_are_on_the_cpu",
    ],
    "no_cuda_sync": [f"{COLLECTOR}devices.py::test_no_cuda_sync_decides_so_in_every_place"],
    "policy": [
        f"{COLLECTOR}policies.py::test_a_factory_is_called_with_the_spaces_of_one_environment",
        f"{COLLECTOR}policies.py::test_a_list_of_factories_gives_each_worker_its_own",
        f"{COLLECTOR}policies.py::test_a_policy_from_a_factory_uses_its_own_weights_until_others_are_sent",
        f"{LEARNER}construction.py::test_a_policy_factory_takes_the_spaces_or_nothing",
    ],
    "create_env_fn": [
        f"{COLLECTOR}amounts.py::test_env_is_a_function_that_makes_one_environment",
        f"{COLLECTOR}amounts.py::test_a_list_of_env_kwargs_has_those_of_each_worker",
        "tests/sdk/cli/test_worker_program.py::test_a_function_that_builds_environments_can_read_the_workers_index",
    ],
    "init_fn": [
        f"{COLLECTOR}hooks.py::test_workers_call_their_hooks",
        f"{COLLECTOR}hooks.py::test_a_hook_may_keep_its_batches",
        f"{COLLECTOR}hooks.py::test_what_a_hook_writes_into_its_batch_is_its_own",
        f"{COLLECTOR}hooks.py::test_the_error_of_a_hook_reaches_the_learner",
    ],
    "update_at_each_batch": [
        f"{COLLECTOR}weights.py::test_weights_are_sent_every_weights_interval_batches",
        f"{COLLECTOR}weights.py::test_in_mode_async_batches_older_than_max_lag_are_dropped_and_counted",
    ],
    "update_policy_weights_(policy_or_weights, weights=, policy=, worker_ids=, model_id=, weights_dict=)": [
        f"{COLLECTOR}weights.py::test_the_source_of_weights_may_be_a_keyword",
        f"{COLLECTOR}weights.py::test_worker_ids_alone_get_the_weights",
        f"{COLLECTOR}weights.py::test_weights_from_several_sources_at_once_are_refused",
        f"{COLLECTOR}wait_for_version.py::test_a_learner_of_one_thread_waits_for_a_version_between_two_batches",
    ],
    "models": [
        f"{COLLECTOR}weights.py::test_model_id_names_the_updated_model",
        f"{COLLECTOR}weights.py::test_weights_dict_updates_several_in_one_version",
    ],
    "weight_sync_schemes": [f"{COLLECTOR}weights.py::test_a_scheme_selects_the_weights_that_travel"],
    "receive_weights": [
        f"{COLLECTOR}cascade.py::test_the_workers_of_an_environments_own_collector_act_on_the_learners_weights",
        f"{COLLECTOR}cascade.py::test_the_outer_learners_version_numbers_hold_whatever_the_inner_interval_is",
    ],
    "cascade_execute": [
        f"{COLLECTOR}cascade.py::test_the_workers_of_a_policys_own_collector_act_on_the_learners_weights"
    ],
    "replay_buffer=": [
        f"{COLLECTOR}learner.py::test_start_fills_the_buffer_in_the_background_until_async_shutdown",
        f"{COLLECTOR}calls.py::test_is_running_tells_whether_the_background_fills",
        f"{COLLECTOR}calls.py::test_every_call_raises_an_error_of_the_background",
    ],
    "pause()": [
        f"{COLLECTOR}learner.py::test_a_pause_collects_nothing_and_loses_nothing",
        f"{COLLECTOR}learner.py::test_in_mode_async_workers_stop_in_a_pause",
    ],
    "set_seed(seed, static_seed)": [
        f"{COLLECTOR}policies.py::test_set_seed_returns_the_next_seed_and_repeats_the_first_batch_of_a_seed",
        f"{COLLECTOR}static_seed.py::test_a_static_seed_is_the_seed_of_all_workers_and_environments",
        f"{COLLECTOR}same_numbers.py::test_two_runs_of_several_workers_are_the_same_in_every_place",
        f"{COLLECTOR}policies.py::test_frames_are_the_same_in_batches_of_any_size",
    ],
    "state_dict": [f"{COLLECTOR}learner.py::test_a_restored_run_counts_on_and_gives_no_id_twice"],
    "add_collectors": [
        f"{COLLECTOR}places.py::test_in_mode_sync_a_round_has_its_frames_with_any_number_of_workers",
        f"{COLLECTOR}scaling.py::test_sync_job_goes_from_2_to_4_to_1_workers_with_batches_of_the_same_frames",
    ],
    "stats()": [f"{COLLECTOR}stats.py::test_stats_have_each_worker_and_the_jobs_end"],
    "map_fn": [
        f"{COLLECTOR}worker_calls.py::test_methods_of_environments_are_called_between_batches",
        f"{COLLECTOR}worker_calls.py::test_methods_of_policies_are_called",
        f"{COLLECTOR}worker_calls.py::test_an_error_of_a_method_is_named_and_workers_go_on",
    ],
    "num_workers_per_collector": [
        f"{COLLECTOR}places.py::test_env_processes_sets_the_processes_of_a_workers_environments"
    ],
    "preemptive_threshold": [
        f"{COLLECTOR}stragglers.py::test_the_threshold_is_the_fraction_of_workers_that_closes_a_round",
        f"{COLLECTOR}stragglers.py::test_a_worker_that_has_not_begun_has_rows_of_padding",
    ],
    "submitit_delayed_launcher": ["tests/docs/test_coming_from.py::test_the_scripts_for_slurm_are_valid_shell"],
    "shutdown(timeout)": [
        f"{COLLECTOR}endings.py::test_workers_have_timeout_s_to_end_in_order",
        f"{COLLECTOR}calls.py::test_after_the_end_a_call_that_would_act_raises_and_the_counters_stay",
        f"{COLLECTOR}calls.py::test_at_the_end_no_call_waits_for_workers_that_have_left",
        "tests/sdk/processes/test_endings.py::test_garbage_collected_collector_leaves_nothing_behind",
    ],
    "filter_warnings_subprocess": [
        "tests/sdk/processes/test_transport.py::test_workers_hide_warnings_unless_quiet_is_false"
    ],
    "init_updater": [f"{COLLECTOR}weights.py::test_a_users_scheme_writes_the_bytes"],
    "enable_profile": [f"{COLLECTOR}hooks.py::test_workers_call_their_hooks"],
    # Environments, transforms and modules
    "Composite": [f"{COLLECTOR}spaces.py::test_every_leaf_comes_with_its_dtype_and_its_true_next_value"],
    "GRUModule": [
        f"{ROLLOUT}recurrent.py::test_torchrls_recurrent_modules_replay_their_batches",
        f"{COLLECTOR}spaces.py::test_a_hidden_state_spans_batches_and_is_initial_at_an_episodes_begin",
    ],
    "OrnsteinUhlenbeckProcessModule": [
        f"{INTEROP}policies.py::test_the_state_of_noise_is_that_of_torchrls_collector_step_by_step",
        f"{COLLECTOR}forms_of_policies.py::test_outputs_of_a_tensordict_module_at_the_root_are_its_state",
    ],
    "step_count": ["tests/sdk/policies/test_tensordict_call.py::test_a_module_can_read_step_count_and_is_init"],
    "MultiThreadedEnv": [f"{COLLECTOR}places.py::test_backend_envpool_collects_from_its_pools"],
    "env.set_info_dict_reader(default_info_dict_reader([...]))": [
        f"{COLLECTOR}infos.py::test_batches_have_the_infos_that_were_asked_for",
        f"{ROLLOUT}infos.py::test_each_frame_has_the_infos_of_its_step",
    ],
    "RewardSum": [f"{COLLECTOR}amounts.py::test_returns_and_lengths_cover_the_ended_episodes"],
    "WorkerFailed": [f"{COLLECTOR}learner.py::test_a_workers_error_shows_its_position_and_how_to_reproduce_it"],
}
"""The tests of each row, by the first code in the row. A row of `ABSENT` is held by the tests of its error message."""


def test_every_row_names_its_tests(repository: Path) -> None:
    text = (repository / "docs" / "coming-from-torchrl.md").read_text()
    rows = [line for line in text.splitlines() if re.match(r"\| (?!TorchRL \||`replay_buffer` \|)", line)]
    found = [code[1] if (code := re.search("`(.+?)`", row)) else row.split(" | ")[0][2:] for row in rows]
    assert sorted(name for name in found if name not in ABSENT) == sorted(TESTS)


@pytest.mark.parametrize("test", sorted({test for tests in TESTS.values() for test in tests}))
def test_each_of_them_exists(test: str, repository: Path) -> None:
    path, _, name = test.partition("::")
    assert f"def {name}(" in (repository / path).read_text()
