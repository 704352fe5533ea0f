package thick

import (
	"context"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/peer"
)

type peerFunc = func(net.Conn) (uid int, ok bool)

type callerKey struct{}

// A caller is the peer of a connection.
type caller struct {
	uid     int // or -1
	allowed bool
}

// caller identifies the peer of c.
func (sv *service) caller(c net.Conn) caller {
	ask := peer.UID
	if sv.peer != nil {
		ask = sv.peer
	}
	uid, known := ask(c)
	if !known {
		return caller{-1, false}
	}
	if sv.AllowUIDs == nil {
		return caller{uid, uid == 0 || uid == os.Geteuid()}
	}
	return caller{uid, slices.Contains(sv.AllowUIDs, uint32(uid))}
}

// ServeHTTP serves one request.
func (sv *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	w.Header().Set(wire.VersionHeader, strconv.Itoa(wire.Version))
	if sv.flight.ends() {
		w.Header().Set("Connection", "close")
	}
	who, looked := r.Context().Value(callerKey{}).(caller)
	if !looked {
		who = caller{-1, true}
	}
	if !who.allowed {
		w.Header().Set("Connection", "close")
		ev := Event{UID: who.uid, Start: start}
		if r.URL.Path == wire.PathCNI || r.URL.Path == wire.PathAttach {
			ev.Path = r.URL.Path
		}
		name := "unknown"
		if who.uid >= 0 {
			name = strconv.Itoa(who.uid)
		}
		sv.observe(ev, refuse(w, http.StatusForbidden, "user %s may not connect", name))
		return
	}
	switch r.URL.Path {
	case wire.PathCNI:
		if allow(w, r, http.MethodPost) {
			sv.operation(w, r, Event{Path: wire.PathCNI, UID: who.uid, Start: start})
		}
	case wire.PathAttach:
		sv.delegate(w, r, Event{Path: wire.PathAttach, UID: who.uid, Start: start})
	case wire.PathInfo:
		if allow(w, r, http.MethodGet, http.MethodHead) {
			sendJSON(w, http.StatusOK, sv.info())
		}
	default:
		switch {
		case sv.probe(w, r):
		case sv.Other != nil:
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // not supported in tests only
			sv.Other.ServeHTTP(w, r)
		default:
			notFound(w, r)
		}
	}
}

func notFound(w http.ResponseWriter, r *http.Request) {
	_ = refuse(w, http.StatusNotFound, "unknown path %.80q", r.URL.Path)
}

// allow reports whether the method of r is one of methods, and refuses r if not.
func allow(w http.ResponseWriter, r *http.Request, methods ...string) bool {
	if slices.Contains(methods, r.Method) {
		return true
	}
	w.Header().Set("Allow", strings.Join(methods, ", "))
	_ = refuse(w, http.StatusMethodNotAllowed, "%s does not accept the method %.20q", r.URL.Path, r.Method)
	return false
}

func plain(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_ = send(w, http.StatusOK, []byte(text)) // nothing depends on it
}

// operation serves a request for an operation and completes ev.
func (sv *service) operation(w http.ResponseWriter, r *http.Request, ev Event) {
	err := sv.answer(w, r, &ev)
	sv.observe(ev, err)
}

// answer serves a request for an operation and returns its error.
func (sv *service) answer(w http.ResponseWriter, r *http.Request, ev *Event) error {
	m, err := read(w, r)
	if err == nil {
		err = sv.overrideErr
	}
	var o *order
	if err == nil {
		o, err = sv.order(ev.Path, m, r.Header)
		ev.about(o)
	}
	if err != nil {
		sendError(w, err)
		return err
	}
	return sv.operate(r.Context(), o, ev, func(body []byte, err error) error {
		if err != nil {
			sendError(w, err)
			return nil
		}
		return send(w, http.StatusOK, body)
	})
}

// about sets the fields of ev that describe o.
func (ev *Event) about(o *order) {
	ev.Command, ev.Network = string(o.command), o.network
	ev.ContainerID, ev.IfName, ev.Args = o.args.ContainerID, o.args.IfName, o.args.Args
}

// observe completes ev, which ended with err, and calls the Observer.
func (sv *service) observe(ev Event, err error) {
	ev.Duration, ev.Err, ev.Status = time.Since(ev.Start), err, http.StatusOK
	if err != nil {
		ev.Status = httpStatus(err)
	}
	if sv.Observer != nil {
		sv.Observer(ev)
	}
}

// delegate serves [wire.PathAttach].
func (sv *service) delegate(w http.ResponseWriter, r *http.Request, ev Event) {
	var methods []string
	if sv.Attachments != nil {
		methods = append(methods, http.MethodGet)
	}
	if sv.Attach != nil {
		methods = append(methods, http.MethodPost)
	}
	switch {
	case sv.Attach == nil && (sv.Attachments == nil || r.Method == http.MethodPost):
		_ = refuse(w, http.StatusNotFound, "this daemon does not attach networks to running containers")
	case sv.Attachments == nil && r.Method == http.MethodGet:
		_ = refuse(w, http.StatusNotFound, "this daemon does not list attachments")
	case !allow(w, r, methods...):
	case r.Method == http.MethodGet:
		sv.list(w, r)
	default:
		sv.operation(w, r, ev)
	}
}

// list serves the list of attachments.
func (sv *service) list(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("container")
	if id != "" && utils.ValidateContainerID(id) != nil {
		sendError(w, coded(http.StatusBadRequest, types.ErrInvalidEnvironmentVariables, "not a container ID: %.80q", id))
		return
	}
	list := []Attachment{}
	if err := sv.guardedProbe(r.Context(), "attachments", func(ctx context.Context) error {
		found, err := sv.Attachments(ctx, id)
		list = append(list, found...)
		return err
	}); err != nil {
		sendError(w, err)
		return
	}
	sendJSON(w, http.StatusOK, list)
}
