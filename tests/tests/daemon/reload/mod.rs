//! The configuration is reloaded while the daemon runs: all of it or nothing, and only the connections that it concerns
//! notice.

mod kill;
mod on_reload;
mod refused;
mod undecided;
mod under_load;
