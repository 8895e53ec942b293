//! What clients, members and files that mean harm cannot do: over real processes, TLS and HTTP.

#[path = "hostile/background.rs"]
mod background;
#[path = "hostile/connections.rs"]
mod connections;
#[path = "hostile/disk.rs"]
mod disk;
#[path = "hostile/doctor.rs"]
mod doctor;
#[path = "hostile/edges.rs"]
mod edges;
#[path = "hostile/events.rs"]
mod events;
#[path = "hostile/http.rs"]
mod http;
#[path = "hostile/identity.rs"]
mod identity;
#[path = "hostile/joining.rs"]
mod joining;
#[path = "hostile/listener.rs"]
mod listener;
#[path = "hostile/logprobs.rs"]
mod logprobs;
#[path = "hostile/logs.rs"]
mod logs;
#[path = "hostile/model.rs"]
mod model;
#[path = "hostile/openai.rs"]
mod openai;
#[path = "hostile/queue.rs"]
mod queue;
#[path = "hostile/requests.rs"]
mod requests;
#[path = "hostile/roles.rs"]
mod roles;
#[path = "hostile/self_test.rs"]
mod self_test;
#[path = "hostile/terminal.rs"]
mod terminal;
#[path = "hostile/traces.rs"]
mod traces;
#[path = "hostile/waiting.rs"]
mod waiting;
