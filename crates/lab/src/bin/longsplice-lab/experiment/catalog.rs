//! The list of the experiments.

use super::beyond::{QUEUE, WAN};
use super::paper::{FIG4, FIG5, FIG6, FIG8, FIG9, SHARE};
use super::plan::Experiment;

/// All experiments, those of the paper in its order.
pub(crate) const EXPERIMENTS: [Experiment; 8] = [FIG4, FIG5, FIG6, FIG8, FIG9, WAN, QUEUE, SHARE];

/// Returns the experiment with a name.
pub(crate) fn find(name: &str) -> Option<&'static Experiment> {
    EXPERIMENTS.iter().find(|experiment| experiment.name == name)
}

#[cfg(test)]
mod tests {
    use super::super::paper::FORCED;
    use super::super::plan::Points;
    use super::*;

    #[test]
    fn every_experiment_has_a_name_of_its_own_and_points() {
        for experiment in &EXPERIMENTS {
            let [quick, all] = [Points::Quick, Points::All].map(experiment.cases);
            assert!(
                !quick.is_empty() && quick.len() <= all.len(),
                "{}",
                experiment.name
            );
            assert!(!experiment.references.is_empty(), "{}", experiment.name);
            assert_eq!(
                find(experiment.name).map(|one| one.title),
                Some(experiment.title),
                "the name is unique"
            );
            for case in quick.iter().chain(&all) {
                let scene = &case.scene;
                assert_eq!(scene.accelerators.len(), scene.links.len() - 1, "{case:?}");
                assert!((1..=8).contains(&scene.links.len()) && case.runs > 0);
                for direction in scene.links.iter().map(|link| &link.to_server) {
                    assert!(
                        direction.rate.is_some_and(|rate| rate <= 100_000_000),
                        "the emulator carries no more in time"
                    );
                }
            }
        }
        assert!(find("fig1").is_none());
    }

    #[test]
    fn the_policy_is_that_of_every_node() {
        for experiment in &EXPERIMENTS {
            for case in (experiment.cases)(Points::All) {
                for options in &case.scene.accelerators {
                    let options = options.join(" ");
                    let forced = options.contains("--min-");
                    assert_eq!(forced, experiment.policy == FORCED, "{}", experiment.name);
                    let keeps = options.contains("--standing-queue");
                    assert_eq!(
                        keeps,
                        experiment.policy.contains("--standing-queue"),
                        "{}",
                        experiment.name
                    );
                    assert!(options.contains(experiment.policy), "{}", experiment.name);
                }
            }
        }
    }
}
