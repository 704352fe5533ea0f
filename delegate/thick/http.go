package thick

import (
	"context"
	"encoding/json"
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
	"github.com/metacni/metacni/status"
)

// pathInfo is the page that says what the daemon can do: api (versions of the messages),
// cniVersions, features, version.
const pathInfo = "/info"

type callerKey struct{}

// A caller is the peer of a connection.
type caller struct {
	conn    net.Conn
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
		return caller{c, -1, false}
	case sv.AllowUIDs == nil:
		return caller{c, uid, uid == 0 || uid == os.Geteuid()}
	}
	return caller{c, uid, slices.Contains(sv.AllowUIDs, uint32(uid))}
}

// ownPaths are the paths that a server does not leave to Other.
var ownPaths = [...]string{wire.PathCNI, wire.PathAttach, wire.PathHealth, wire.PathReady, pathInfo} //nolint:gochecknoglobals // never written

// ServeHTTP serves one request: a command, a page of Other, or one of its own.
func (sv *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, _ := r.Context().Value(callerKey{}).(caller)
	w.Header().Set(wire.VersionHeader, strconv.Itoa(wire.Version))
	op := &operation{Event: Event{UID: who.uid, Start: time.Now()}, answer: func(a reply) error { return a.send(w) }}
	if path := r.URL.Path; path == wire.PathCNI || path == wire.PathAttach {
		op.Path = path
	}
	isOther := sv.Other != nil && !slices.Contains(ownPaths[:], r.URL.Path)
	if who.allowed && !isOther {
		sv.strangers.dismiss(who.conn)
	}
	var err error
	switch {
	case !who.allowed:
		err = coded(http.StatusForbidden, types.ErrInternal, "%s may not connect", who)
	case op.Path != "" && r.Method == http.MethodPost && (!op.more() || sv.Attach != nil):
		err = sv.command(w, r, op)
	case isOther:
		sv.other(w, r)
		return
	default:
		_ = op.answer(sv.page(r)) // if it fails, the client has gone
		return
	}
	if err != nil && !op.answered {
		_ = op.answer(failure(err)) // likewise
	}
	sv.observe(op, err)
}

// other serves a page of Other, to a limited number of clients.
func (sv *service) other(w http.ResponseWriter, r *http.Request) {
	select {
	case sv.others <- struct{}{}:
		defer func() { <-sv.others }()
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // not supported in tests only
		sv.Other.ServeHTTP(w, r)
	default:
		_ = refusal(http.StatusServiceUnavailable, "too many clients").send(w) // if it fails, the client has gone
	}
}

// command decodes the request for op and operates.
func (sv *service) command(w http.ResponseWriter, r *http.Request, op *operation) error {
	m, err := read(w, r)
	if err == nil {
		err = sv.decode(op, m, r.Header)
	}
	if err != nil {
		return err
	}
	return sv.operate(r.Context(), op)
}

// page answers a request that is no command.
func (sv *service) page(r *http.Request) reply {
	switch get := r.Method == http.MethodGet; {
	case r.URL.Path == wire.PathCNI:
		return allowed(r, nil, http.MethodPost)
	case r.URL.Path == wire.PathAttach && get && sv.Attachments == nil:
		return refusal(http.StatusNotFound, "this daemon does not list attachments")
	case r.URL.Path == wire.PathAttach && !get && sv.Attach == nil:
		return refusal(http.StatusNotFound, "this daemon does not attach networks to running containers")
	case r.URL.Path == wire.PathAttach:
		return allowed(r, sv.list, http.MethodGet, http.MethodPost)
	case r.URL.Path == pathInfo:
		return allowed(r, sv.info, http.MethodGet, http.MethodHead)
	}
	return sv.probe(r)
}

// Probes serves [wire.PathHealth] and [wire.PathReady] to everybody, and nothing
// else. Serve it where probes can reach it, such as on a TCP address: commands
// are only served by Serve.
func (s *Server) Probes() http.Handler {
	sv := s.service()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _ = sv.probe(r).send(w) })
}

// probe answers a request for the health or the readiness. Any other path is unknown.
func (sv *service) probe(r *http.Request) reply {
	switch r.URL.Path {
	case wire.PathHealth:
		return allowed(r, healthy, http.MethodGet, http.MethodHead, http.MethodPost)
	case wire.PathReady:
		return allowed(r, sv.readiness, http.MethodGet, http.MethodHead, http.MethodPost)
	}
	return refusal(http.StatusNotFound, "unknown path %.80q", r.URL.Path)
}

func healthy(*http.Request) reply {
	return reply{status: http.StatusOK, body: []byte("ok\n"), plain: true}
}

// readiness answers whether an ADD would be served and Probe is content. With the
// query "verbose" it lists the checks.
func (sv *service) readiness(r *http.Request) reply {
	checks := sv.checks(r.Context())
	if sv.Probe != nil {
		var ok bool
		err := sv.ask(r.Context(), "probe", func(ctx context.Context) (err error) {
			ok, err = sv.Probe(ctx)
			return err
		})
		checks = append(checks, checked("probe", ok, err))
	}
	err := failed(checks)
	if err != nil {
		err = &answered{http.StatusServiceUnavailable, err}
	}
	switch {
	case r.URL.Query().Has("verbose"):
		var said *types.Error
		if err != nil {
			said = types.NewError(status.Code(err), err.Error(), "")
		}
		return object(httpStatus(err), struct {
			*types.Error

			Checks []check `json:"checks"`
		}{said, checks})
	case err != nil:
		return failure(err)
	}
	return healthy(r)
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
	list := []Listed{}
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
