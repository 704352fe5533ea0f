package thick

import (
	"context"
	"net/http"
	"strings"

	"github.com/metacni/metacni/delegate/thick/wire"
)

type traceKey struct{}

// maxTrace is the most that a part of a trace may have: what Baggage may.
const maxTrace = 8192

// Trace returns the trace of the request that the [Commands] with the context
// ctx serves, as entries of an environment: those of [wire.TraceEnv] that the
// request has, for the plugins it delegates to. Headers of the request go
// before its environment. It returns nil when there is no trace. The caller may
// change what it returns.
func Trace(ctx context.Context) []string {
	t, _ := ctx.Value(traceKey{}).([]string)
	return append([]string(nil), t...)
}

// traceOf returns the trace of a request. A part that no environment could hold
// is left out: it is no reason to fail.
func traceOf(env map[string]string, header http.Header) []string {
	var t []string
	for i, name := range wire.TraceEnv {
		value := header.Get(wire.TraceHeaders[i])
		if value == "" {
			value = env[name]
		}
		if value != "" && len(value) <= maxTrace && !strings.ContainsRune(value, 0) {
			t = append(t, name+"="+value)
		}
	}
	return t
}
