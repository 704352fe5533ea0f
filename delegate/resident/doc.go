// Package resident serves CNI plugins from long-running processes: a resident
// plugin registers once with a daemon and is called over a unix socket instead of
// being executed for each command.
//
// A [Host] is the daemon's side. Its Exec method returns a [delegate.Exec] that
// calls residents for the types they serve, and another Exec for all other types.
// A [Resident] is the plugin's side. It serves a [plugin.Plugin], which can also run
// as an executable.
//
// # Types
//
// A resident registers with an index of two digits, a name, and the plugin types
// it serves. Residents are ordered by index and name. A type has one resident at a
// time; a second one is refused.
//
// A type that a resident has served is reserved for it: no executable of that type
// runs in its place. While the resident is not connected,
//
//   - DEL, CHECK and GC wait for it, up to [Host.ReturnTimeout];
//   - ADD and STATUS fail at once.
//
// Failed calls have CNI code 11, try again later. So have calls that the resident
// does not answer in time, and calls during which the connection is lost. With
// [Host.StateDir] types stay reserved after a restart of the daemon.
//
// # Registration
//
// Residents connect to [Host.Listener], or the host launches them from [Host.Dir].
// Before its first command, the host tells a resident which attachments of its types
// exist.
//
// # Return to an executable
//
// To serve a type with an executable again, stop the resident and remove the file
// of the type from [Host.StateDir]. From then on the executable receives the DELs
// of the attachments that the resident has made. If it cannot handle them, remove
// the containers first: a host that starts while a type has no attachments
// releases the type by itself. [Host.Orphan] releases types after a time.
//
// # Protocol
//
// The two sides exchange messages of JSON-RPC 2.0 (https://www.jsonrpc.org), one JSON
// object in a line. Batches are not used, and unknown keys of results are ignored.
// This is version 3; the host refuses others, with a reason. The host calls:
//
//	register     {"version":3}: who the resident is. The result is
//	             {"version":3,"index":"10","name":"static","types":["static"]}.
//	refused      {"reason":"..."}: the connection is closed after the answer.
//	synchronize  {"known":[...]}: the current attachments.
//	cni          {"type":"static","env":{...},"config":"..."}: a command; config is
//	             stdin. The result is stdout. Both are base64.
//	cancel       ["7"]: cancels the call with this ID, which is still answered.
//	             This is a notification.
//
// The resident calls:
//
//	request      {"containerID":"...","network":{...}}: see [Request].
//	leave        makes the host call no more commands, and close the connection after
//	             the last answer. This is a notification.
//
// The data of an error is the error object of CNI.
//
// A message to the host has up to 8 MiB. The host disconnects a resident whose messages
// are longer or not JSON objects, and one that does not read its messages.
//
// # Limits
//
// A resident has no configuration of its own: each command carries one, as for any
// plugin. A resident is called only for its types and receives no other events.
package resident
