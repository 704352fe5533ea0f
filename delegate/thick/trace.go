package thick

import (
	"context"
	"net/http"
	"strings"

	"github.com/metacni/metacni/delegate/thick/wire"
)

type traceKey struct{}

// maxTrace is the size limit of each part of a trace: that of Baggage.
const maxTrace = 8192

// Trace returns the trace of the request that a command with the context ctx
// serves, as "key=value" entries for the environment of plugins. The keys are
// those of [wire.TraceEnv] that the request has; headers of the request take
// precedence over its environment. Trace returns nil when there is no trace. The
// caller may change the result.
func Trace(ctx context.Context) []string {
	t, _ := ctx.Value(traceKey{}).([]string)
	return append([]string(nil), t...)
}

// traceOf returns the trace of a request. It leaves out what an environment cannot
// hold.
func traceOf(env map[string]string, header http.Header) []string {
	var t []string
	for _, name := range wire.TraceEnv {
		value := header.Get(name)
		if value == "" {
			value = env[name]
		}
		if value != "" && len(value) <= maxTrace && !strings.ContainsRune(value, 0) {
			t = append(t, name+"="+value)
		}
	}
	return t
}
