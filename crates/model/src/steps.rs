//! Takes the steps of a change one by one, or all at once. The steps of others may fall between them.

use super::state::Flow;

/// Change of a flow in steps: each is one access of the programs to what others write as well.
pub trait Steps: Sized {
    /// Value of the last step.
    type End;

    /// Takes one step. Returns the end after the last one.
    fn step(&mut self, flow: &mut Flow) -> Option<Self::End>;

    /// Takes all steps at once.
    fn run(mut self, flow: &mut Flow) -> Self::End {
        loop {
            if let Some(end) = self.step(flow) {
                return end;
            }
        }
    }
}
