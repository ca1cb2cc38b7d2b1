//! The list of the experiments.

use super::beyond::{QUEUE, WAN};
use super::congestion::{CONVERGENCE, FIG11, FIG12, SHARE, UTILISATION};
use super::deployment::{FIG14, FIG15};
use super::paper::{FIG4, FIG5, FIG6, FIG7, FIG8, FIG9};
use super::plan::Experiment;
use super::returning::RETURN;
use super::table::TABLE1;

/// All experiments, those of the paper in its order.
pub(crate) const EXPERIMENTS: &[Experiment] = &[
    FIG4,
    FIG5,
    FIG6,
    FIG7,
    FIG8,
    FIG9,
    FIG11,
    FIG12,
    UTILISATION,
    FIG14,
    FIG15,
    TABLE1,
    WAN,
    QUEUE,
    RETURN,
    SHARE,
    CONVERGENCE,
];

/// Returns the experiment with a name.
pub(crate) fn find(name: &str) -> Option<&'static Experiment> {
    EXPERIMENTS.iter().find(|experiment| experiment.name == name)
}

#[cfg(test)]
mod tests {
    use longsplice_lab::GraphSpec;

    use super::super::paper::{FORCED, KEPT};
    use super::super::plan::Points;
    use super::*;

    #[test]
    fn every_experiment_has_a_name_of_its_own_and_points() {
        for experiment in EXPERIMENTS {
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
                assert!(
                    [0, scene.graph.nodes.len()].contains(&scene.accelerators.len()),
                    "{case:?}"
                );
                let text = toml::to_string(&scene.graph).unwrap();
                assert_eq!(text.parse::<GraphSpec>().unwrap(), scene.graph, "{text}");
                assert!(case.runs > 0);
                for direction in scene.graph.links.iter().map(|link| &link.link.to_server) {
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
        // The operations of the table need different ones; its results show them with each series.
        let others = EXPERIMENTS.iter().filter(|one| one.name != TABLE1.name);
        for experiment in others {
            for case in (experiment.cases)(Points::All) {
                for options in &case.scene.accelerators {
                    let options = options.join(" ");
                    for policy in [FORCED, KEPT] {
                        let has_it = options.contains(policy);
                        assert_eq!(has_it, experiment.policy == policy, "{}", experiment.name);
                    }
                    let others = options.replace(experiment.policy, "");
                    assert!(
                        !others.contains("--min-") && !others.contains("--standing-"),
                        "{options}"
                    );
                }
            }
        }
    }
}
