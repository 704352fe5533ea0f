// Package resident runs CNI plugins that stay: a resident is a process that
// registers once and then serves its commands over a unix socket, where other
// plugins are run anew for each. A [Host] is the meta-plugin's end and hands
// such calls on as an [invoke.Exec]; a [Plugin] is the other end, and makes a
// resident of a plugin written for package skel.
//
// A type that a resident has registered is the resident's from then on: no
// executable of that name is run in its stead. When the resident is not there,
// DEL, CHECK and GC wait for it, and ADD and STATUS fail at once. A call for which
// it does not come back in time, which it does not answer, or which is cut off in
// the middle fails with CNI code 11, and so does the operation that the call is
// part of. With [Host.StateDir] this holds after a restart, too.
//
// # Residents
//
// Residents come in two ways: they connect to [Host.Listener], or they are
// launched from [Host.Dir]. Both are treated alike. Each has an index of two
// digits and a name, and the types of the plugins it serves: of each of these
// there is one at a time, and whoever comes second is refused. Their order is
// that of index and name.
//
// A resident that has just registered is told what is attached before it serves
// anything, so that nothing falls in between; see [Host.Begin].
//
// # Giving a type up
//
// To go back from a resident to an executable of its type, end the resident for
// good and remove the type's file from [Host.StateDir]. The executable then
// gets the DELs of what the resident has attached. If it cannot do these, remove
// the containers first: a host that is started while nothing is attached by a
// type gives that up by itself. [Host.Orphan] gives types up after a time.
//
// # Messages
//
// The resident writes one line of JSON, and is answered with one:
//
//	{"version":1,"index":"10","name":"static","types":["static"]}
//	{"version":1,"requests":true}
//
// or, when it is refused and the connection is closed:
//
//	{"version":1,"error":"type \"static\" is 05-other's, and 10-static claims it"}
//
// Then the roles turn: on the same connection the resident is an HTTP/2 server
// without TLS, and the host its client. Unknown keys are ignored.
//
//	POST /cni          a command: the [wire.Request] of a thick plugin's shim,
//	                   with the header CNI-Plugin that names the type. 200 and
//	                   what the plugin printed, or 500 and its error object.
//	POST /ping         nothing, and 200: the first calls.
//	POST /synchronize  {"known":[...]}: what is attached. 200, or an error object.
//	POST /requests     lines of JSON in both directions, as long as the resident
//	                   is connected: {"id":1,"updates":[...]} from it, and
//	                   {"id":1,"failed":[...]} to it, up to 64 updates in a line
//	                   of less than 1 MiB. With {"leaving":true} it
//	                   asks for no more calls: the host closes the connection
//	                   when those that are running have been answered. 404 is
//	                   for residents that ask for nothing.
//
// When a call's context ends its stream is reset, which ends the context of the
// resident's handler; the connection stays.
//
// # What there is not
//
// A resident gets no configuration of its own: as with every plugin, it comes
// with each call. It subscribes to no events: what it is called for is what its
// types are used for, and a nil command is one it does not need. And it is never
// asked what others do.
//
// [invoke.Exec]: https://pkg.go.dev/github.com/containernetworking/cni/pkg/invoke#Exec
//
// [wire.Request]: https://pkg.go.dev/github.com/metacni/metacni/delegate/thick/wire#Request
package resident
