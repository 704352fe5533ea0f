package thick

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/status"
)

// send answers with the body. It fails unless the body has left this process. The
// content type of a body is JSON unless the header has another.
func send(w http.ResponseWriter, httpStatus int, body []byte) error {
	c := http.NewResponseController(w)
	// Without a limit a client that does not read would block its container.
	if err := c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	h := w.Header()
	if h.Get("Content-Type") == "" && len(body) > 0 {
		h.Set("Content-Type", "application/json")
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(httpStatus)
	if _, err := w.Write(body); err != nil && !errors.Is(err, http.ErrBodyNotAllowed) {
		return err
	}
	if err := c.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// sendJSON answers with the JSON of v.
func sendJSON(w http.ResponseWriter, httpStatus int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		httpStatus = http.StatusInternalServerError
		body, _ = json.Marshal(status.Error(err))
	}
	_ = send(w, httpStatus, body) // if it fails, the client has gone
}

// sendError answers with err as the error object of the specification.
func sendError(w http.ResponseWriter, err error) {
	code := httpStatus(err)
	if code == statusGone {
		code = http.StatusInternalServerError // the client may have closed only its writing half
	}
	retry(w, code)
	sendJSON(w, code, status.Error(err))
}

// retry sets Retry-After when the request may be sent again.
func retry(w http.ResponseWriter, httpStatus int) {
	if httpStatus == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
}

// refuse answers a request that cannot be served at all, and returns the error.
func refuse(w http.ResponseWriter, httpStatus int, format string, args ...any) error {
	err := coded(httpStatus, types.ErrInternal, format, args...)
	sendError(w, err)
	return err
}
