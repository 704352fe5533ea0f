// Package resident serves CNI plugins from long-running processes: a resident
// plugin registers once with a daemon and is called over a unix socket instead of
// being executed for each command.
//
// A [Host] is the daemon's side. Its Exec method returns an [invoke.Exec] that
// calls residents for the types they serve, and another Exec for all other types.
// A [Plugin] is the plugin's side. It serves a [plugin.Plugin], which can also run
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
// The host tells a resident which attachments of its types exist before it calls
// it; see [Host.Begin].
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
// This is version 2. Both sides refuse other versions, with a reason. Version 1
// used HTTP/2; a resident built with it must be built again.
//
// The resident writes one line of JSON, the hello, and the host answers with one:
//
//	{"version":2,"index":"10","name":"static","types":["static"]}
//	{"version":2,"requests":true}
//
// "requests" says whether the host takes requests. When the host refuses the
// resident, it answers with a reason and closes the connection:
//
//	{"version":2,"error":"refused: 10-static claims type \"static\", which 05-other serves"}
//
// After that both sides exchange messages. A message is a JSON object that follows
// its length in bytes, an unsigned integer of 32 bits, most significant byte first.
// Unknown keys are ignored.
//
//	{"id":1,"call":"cni","body":{...}}   a call
//	{"id":1,"stdout":"..."}              its answer; stdout is base64
//	{"id":1,"error":{...}}               its answer, as the error object of CNI
//	{"id":1,"cancel":true}               cancels a call, which is still answered
//	{"call":"ping"}                      is answered with {}
//	{"call":"leave"}                     from the resident: makes no further calls,
//	                                     and closes the connection after the last answer
//
// Each side numbers its own calls. The calls are:
//
//	cni          host to resident, a command: {"type":"static","env":{...},
//	             "config":"...","deadlineMs":29000}; config is stdin in base64
//	synchronize  host to resident, the current attachments: {"known":[...]}
//	request      resident to host: {"op":"attach","containerID":"...",...}
//
// The host makes up to 96 calls at the same time, with messages of up to 64 MiB;
// the resident up to 16, with messages of up to 8 MiB. A side that exceeds this, or
// sends anything else, is disconnected.
//
// # Limits
//
// A resident has no configuration of its own: each command carries one, as for any
// plugin. A resident is called only for its types and receives no other events.
//
// [invoke.Exec]: https://pkg.go.dev/github.com/containernetworking/cni/pkg/invoke#Exec
package resident
