package thick

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/status"
)

// writeTimeout is how long a client has to read its answer.
const writeTimeout = 10 * time.Second

// A reply is the answer to a request.
type reply struct {
	status int
	body   []byte // JSON, unless plain is set
	plain  bool
	allow  string // the methods that the path has, if it does not have that of the request
}

// object returns a reply with the JSON of v.
func object(httpStatus int, v any) reply {
	body, err := json.Marshal(v)
	if err != nil {
		return failure(err)
	}
	return reply{status: httpStatus, body: body}
}

// failure returns a reply with err as the error object of the specification.
func failure(err error) reply {
	code := httpStatus(err)
	if code == statusGone {
		code = http.StatusInternalServerError // the client may have closed only its writing half
	}
	return object(code, status.Error(err))
}

// refusal returns the reply to a request that cannot be served at all.
func refusal(httpStatus int, format string, args ...any) reply {
	return failure(coded(httpStatus, types.ErrInternal, format, args...))
}

// send answers with r. It fails unless r has left this process.
func (r reply) send(w http.ResponseWriter) error {
	c := http.NewResponseController(w)
	// Without a limit a client that does not read would block its container.
	_ = c.SetWriteDeadline(time.Now().Add(writeTimeout)) // not supported in tests only
	h := w.Header()
	switch {
	case r.plain:
		h.Set("Content-Type", "text/plain; charset=utf-8")
	case len(r.body) > 0:
		h.Set("Content-Type", "application/json")
	}
	if r.allow != "" {
		h.Set("Allow", r.allow)
	}
	if r.status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "1")
	}
	h.Set("Content-Length", strconv.Itoa(len(r.body)))
	w.WriteHeader(r.status)
	if _, err := w.Write(r.body); err != nil {
		return err // of the answer to a HEAD too, which nobody asks for
	}
	return c.Flush()
}
