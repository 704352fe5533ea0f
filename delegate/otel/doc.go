// Package otel traces the commands of a meta-plugin with OpenTelemetry.
//
// [Process] gives the command that a plugin executes, or a daemon serves, these spans:
//
//	CNI ADD              the whole command, with the wait for its turn (kind server)
//	    queue            the wait for its turn, in a daemon
//	    lock             the wait for the lock of the container
//	    record           each write of the record
//	    ADD bridge       each invocation of a plugin, by its type (kind client)
//	    undo             the undo of an ADD that has failed
//	        DEL bridge
//
// A stage of the program's own has its name, such as status in multinetd. A span takes some
// 15 µs, and the ADD of two plugins has seven; BenchmarkADD compares.
//
// A runtime that traces gives its own span in the variables TRACEPARENT and TRACESTATE of
// the W3C Trace Context, and the span of the command is a child of that. multinet-shim and the
// shim of package thick send the variables to the daemon. Each plugin gets its own
// invocation's span in them, whether it is executed, resident or a step, so that a
// plugin that traces too continues the same trace. Outside of a command nothing is traced.
//
// A thin plugin traces its own process:
//
//	process := otel.Traced(plugin.OfProcess(), provider)
//	err := p.Run(ctx, process)
//
// A daemon does the same for each request, in the function Trace of a thick.Server: the trace
// of the request is in the environment there, and not yet in the function Process. The program
// makes the provider, with an exporter, and shuts it down before it ends. This package needs only
// the API of OpenTelemetry.
//
// # Attributes
//
// The spans have cni.command, cni.network.name, cni.plugin.type, container.id and
// network.interface.name, and what [Pod] adds. A span that failed has the status Error with
// the text that the runtime gets, the CNI error code in cni.error.code, and the same in
// error.type. No span has a plugin's configuration, and no text is longer than 512 bytes.
package otel
