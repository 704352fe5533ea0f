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
	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// pathInfo is the page that says what the daemon can do: api (versions of the messages),
// cniVersions, features, version.
const pathInfo = "/info"

type callerKey struct{}

// A caller is the peer of a connection.
type caller struct {
	uid     int // or -1
	allowed bool
}

func (c caller) String() string {
	if c.uid < 0 {
		return "user unknown"
	}
	return "user " + strconv.Itoa(c.uid)
}

// caller identifies the peer of c.
func (sv *service) caller(c net.Conn) caller {
	uid, known := sv.peer(c)
	switch {
	case !known:
		return caller{-1, false}
	case sv.AllowUIDs == nil:
		return caller{uid, uid == 0 || uid == os.Geteuid()}
	}
	return caller{uid, slices.Contains(sv.AllowUIDs, uint32(uid))}
}

// ownPaths are the paths that a server does not leave to Other.
var ownPaths = [...]string{wire.PathCNI, wire.PathAttach, wire.PathHealth, wire.PathReady, pathInfo} //nolint:gochecknoglobals // never written

// ServeHTTP serves one request: a command, a page of Other, or one of its own.
func (sv *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	op := &operation{start: time.Now()}
	if path := r.URL.Path; path == wire.PathCNI || path == wire.PathAttach {
		op.path = path
	}
	who, looked := r.Context().Value(callerKey{}).(caller)
	if !looked {
		who = caller{-1, true}
	}
	op.uid = who.uid
	w.Header().Set(wire.VersionHeader, strconv.Itoa(wire.Version))
	if !who.allowed || sv.flight.now() >= draining {
		w.Header().Set("Connection", "close")
	}
	switch {
	case !who.allowed:
		err := coded(http.StatusForbidden, types.ErrInternal, "%s may not connect", who)
		_ = failure(err).send(w)
		sv.observe(op, err)
	case op.path != "" && r.Method == http.MethodPost && (!op.more() || sv.Attach != nil):
		sv.command(w, r, op)
	case sv.Other != nil && !slices.Contains(ownPaths[:], r.URL.Path):
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // not supported in tests only
		sv.Other.ServeHTTP(w, r)
	default:
		_ = sv.page(r).send(w) // if it fails, the client has gone
	}
}

// command decodes the request for op, operates, and answers.
func (sv *service) command(w http.ResponseWriter, r *http.Request, op *operation) {
	delivered := false
	op.deliver = func(body []byte) error {
		delivered = true
		return reply{status: http.StatusOK, body: body}.send(w)
	}
	m, err := read(w, r)
	if err == nil {
		op.order, err = decode(op.path, m, r.Header, sv.override)
	}
	if err == nil {
		err = sv.operate(r.Context(), op)
	}
	if err != nil && !delivered {
		_ = failure(err).send(w) // if it fails, the client has gone
	}
	sv.observe(op, err)
}

// page answers a request that is no command.
func (sv *service) page(r *http.Request) reply {
	switch r.URL.Path {
	case wire.PathCNI:
		return allowed(r, nil, http.MethodPost)
	case wire.PathAttach:
		switch {
		case sv.Attach == nil && (sv.Attachments == nil || r.Method != http.MethodGet):
			return refusal(http.StatusNotFound, "this daemon does not attach networks to running containers")
		case sv.Attachments == nil && r.Method == http.MethodGet:
			return refusal(http.StatusNotFound, "this daemon does not list attachments")
		}
		return allowed(r, sv.list, http.MethodGet, http.MethodPost)
	case pathInfo:
		return allowed(r, sv.info, http.MethodGet, http.MethodHead)
	}
	return sv.probe(r)
}

// allowed returns what serve answers to a request with one of the methods.
func allowed(r *http.Request, serve func(*http.Request) reply, methods ...string) reply {
	if slices.Contains(methods, r.Method) {
		return serve(r)
	}
	refused := refusal(http.StatusMethodNotAllowed, "%s does not accept the method %.20q", r.URL.Path, r.Method)
	refused.allow = strings.Join(methods, ", ")
	return refused
}

// list lists the attachments.
func (sv *service) list(r *http.Request) reply {
	id := r.URL.Query().Get("container")
	if id != "" && utils.ValidateContainerID(id) != nil {
		return failure(coded(http.StatusBadRequest, types.ErrInvalidEnvironmentVariables, "not a container ID: %.80q", id))
	}
	list := []Attachment{}
	if err := sv.guarded(r.Context(), "attachments", func(ctx context.Context) error {
		found, err := sv.Attachments(ctx, id)
		list = append(list, found...)
		return err
	}); err != nil {
		return failure(err)
	}
	return object(http.StatusOK, list)
}

// info says what the server can do.
func (sv *service) info(*http.Request) reply {
	features := []string{}
	for _, f := range []struct {
		has  bool
		name string
	}{{sv.Attach != nil, "delegate"}, {sv.Attachments != nil, "attachments"}, {sv.Queue != "", "queue"}} {
		if f.has {
			features = append(features, f.name)
		}
	}
	return object(http.StatusOK, map[string]any{
		"api": []int{wire.Version}, "cniVersions": version.All.SupportedVersions(), "features": features, "version": sv.Version,
	})
}
