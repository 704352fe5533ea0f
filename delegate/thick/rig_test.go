package thick

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick/wire"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/turns"
)

// A fake is a plugin of functions; a function that is nil succeeds. It notes which
// commands are called, and which have ended.
type fake struct {
	add, check, del, gc, status func(context.Context, *skel.CmdArgs) error

	result string // what ADD prints, if not an interface

	nodetest.Notes[string]
}

func (f *fake) plugin() plugin.Plugin {
	run := func(do *func(context.Context, *skel.CmdArgs) error) func(context.Context, *plugin.Call) error {
		return func(ctx context.Context, c *plugin.Call) error {
			what := strings.TrimSpace(string(c.Command) + " " + c.ContainerID)
			f.Note(what)
			if *do != nil {
				defer f.Note("end " + what)
				if err := (*do)(ctx, c.CmdArgs()); err != nil {
					return err
				}
			}
			text := "what only an ADD should print"
			if c.Command == delegate.CommandAdd {
				text = cmp.Or(f.result, fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":%q}]}`, c.IfName))
			}
			_, err := io.WriteString(c.System.Stdout, text)
			return err
		}
	}
	return plugin.Plugin{Add: run(&f.add), Check: run(&f.check), Del: run(&f.del), GC: run(&f.gc), Status: run(&f.status)}
}

// untilEnd is a plugin's method that runs until its context ends.
func untilEnd(ctx context.Context, _ *skel.CmdArgs) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// A gate holds operations until it is opened.
type gate chan struct{}

// wait is a plugin's method that runs until the gate is open.
func (g gate) wait(ctx context.Context, _ *skel.CmdArgs) error {
	select {
	case <-g:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// An inMemory is a listener of pipes, which work in a synctest bubble.
type inMemory struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newInMemory() *inMemory {
	return &inMemory{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *inMemory) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *inMemory) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *inMemory) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

func (l *inMemory) dial(ctx context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func me(net.Conn) (int, bool) { return os.Geteuid(), true }

// A rig is a server that serves, and a client of it.
type rig struct {
	t *testing.T
	*Server
	*http.Client
	l     *inMemory
	stop  context.CancelFunc
	done  chan struct{} // closed when Serve has returned
	err   error         // of Serve
	fails error         // what Serve is to return
}

// serve starts s on pipes. It has ended, without an error, when the test ends.
func serve(t *testing.T, s *Server) *rig {
	t.Helper()
	r := newRig(t, s)
	r.run(r.l)
	synctest.Wait()
	return r
}

// newRig returns a rig whose server has not been started. This user is the peer of each
// connection.
func newRig(t *testing.T, s *Server) *rig {
	t.Helper()
	s.service().peer = me
	r := &rig{t: t, Server: s, l: newInMemory(), done: make(chan struct{})}
	r.Client = clientOf(r.l.dial)
	return r
}

// run starts Serve on l.
func (r *rig) run(l net.Listener) {
	ctx, stop := context.WithCancel(context.WithoutCancel(r.t.Context()))
	r.stop = stop
	go func() {
		defer close(r.done)
		r.err = r.Serve(ctx, l)
	}()
	r.t.Cleanup(func() {
		stop()
		<-r.done
		nodetest.Is(r.t, r.err, r.fails)
	})
}

// limited returns s, of which MaxInFlight operations of each kind run at once, and so many more
// requests may wait for their turn.
func limited(s *Server, waiting int) *Server {
	sv := s.service()
	for _, l := range []*turns.Lane{&sv.add, &sv.del, &sv.gc} {
		*l = turns.NewLane(s.MaxInFlight, s.MaxInFlight, waiting)
	}
	sv.status = turns.NewLane(statusInFlight, statusInFlight, waiting)
	return s
}

// wantNoLoad checks that no operation runs or waits.
func (r *rig) wantNoLoad() {
	r.t.Helper()
	nodetest.Equal(r.t, "left", r.Loads(), map[string]Load{"add": {}, "del": {}, "gc": {}, "status": {}})
}

func clientOf(dial func(context.Context) (net.Conn, error)) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}}
}

// An answer is one of HTTP. Its status is 0 where there is none.
type answer struct {
	status int
	header http.Header
	body   string
	err    error
}

func exchange(ctx context.Context, c *http.Client, method, path string, body []byte) answer {
	req, err := http.NewRequestWithContext(ctx, method, "http://dummy"+path, bytes.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	res, err := c.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(data), err}
}

// send writes m to c.
func send(t *testing.T, c net.Conn, m wire.Request) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://dummy"+wire.PathCNI, bytes.NewReader(encoded(m)))
	if err == nil {
		err = req.Write(c)
	}
	nodetest.OK(t, err)
}

// connect makes a connection, which ends with the test.
func (r *rig) connect() net.Conn {
	r.t.Helper()
	c, err := r.l.dial(r.t.Context())
	nodetest.OK(r.t, err)
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

// get asks for a page.
func (r *rig) get(path string) answer {
	return exchange(r.t.Context(), r.Client, http.MethodGet, path, nil)
}

// attach sends m, which is about one more network.
func (r *rig) attach(m wire.Request) answer {
	return exchange(r.t.Context(), r.Client, http.MethodPost, wire.PathAttach, encoded(m))
}

// bare returns a server of a plugin that does nothing, and succeeds.
func bare() *Server { return &Server{Plugin: (&fake{}).plugin()} }

// do sends m and returns the answer, which must be one.
func (r *rig) do(m wire.Request) answer {
	r.t.Helper()
	a := r.ask(r.t.Context(), m)
	nodetest.OK(r.t, a.err)
	return a
}

func (r *rig) ask(ctx context.Context, m wire.Request) answer {
	return exchange(ctx, r.Client, http.MethodPost, wire.PathCNI, encoded(m))
}

// begin sends m and returns a function that waits for the answer.
func (r *rig) begin(m wire.Request) func() answer {
	return r.beginUntil(r.t.Context(), m)
}

// beginUntil is begin for a client that goes when ctx ends.
func (r *rig) beginUntil(ctx context.Context, m wire.Request) func() answer {
	return begun(func() answer { return r.ask(ctx, m) })
}

func encoded(m wire.Request) []byte {
	data, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return data
}

const podsConf = `{"cniVersion":"1.1.0","name":"pods","type":"multinet"}`

// request is the command for a container.
func request(verb, id string) wire.Request {
	return wire.Request{
		Env: map[string]string{
			"CNI_COMMAND": verb, "CNI_CONTAINERID": id, "CNI_NETNS": "/run/netns/" + id, "CNI_IFNAME": "eth0", "CNI_PATH": "/opt/cni/bin",
		},
		Config: []byte(podsConf),
	}
}

// with returns m with other variables. An empty value removes one.
func with(m wire.Request, kv ...string) wire.Request {
	env := maps.Clone(m.Env)
	for pair := range slices.Chunk(kv, 2) {
		env[pair[0]] = pair[1]
		if pair[1] == "" {
			delete(env, pair[0])
		}
	}
	m.Env = env
	return m
}

// want checks an answer that is an error.
func (a answer) want(t *testing.T, status int, code uint, text string) {
	t.Helper()
	if said := a.said(); a.status != status || said.Code != code || !strings.Contains(said.Msg, text) {
		t.Errorf("answer %d %s (%v), want %d, code %d and %q", a.status, a.body, a.err, status, code, text)
	}
	nodetest.Equal(t, fmt.Sprintf("%d: Content-Type", a.status), a.header.Get("Content-Type"), "application/json")
	if (status == http.StatusServiceUnavailable) != (a.header.Get("Retry-After") != "") {
		t.Errorf("%d: Retry-After %q", a.status, a.header.Get("Retry-After"))
	}
}

func (a answer) wantOK(t *testing.T) {
	t.Helper()
	if a.status != http.StatusOK || a.err != nil {
		t.Errorf("answer %d %s, %v", a.status, a.body, a.err)
	}
}

func logTo(l *nodetest.Log) *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// understood is the operation of m for a client that gets the answer.
func understood(s *Server, m *wire.Request, header http.Header) (*operation, error) {
	op := &operation{Event: Event{Path: wire.PathCNI, Start: time.Now()}, answer: func(reply) error { return nil }}
	return op, s.service().decode(op, m, header)
}

// said is the error object.
func (a answer) said() (e types.Error) {
	_ = json.Unmarshal([]byte(a.body), &e)
	return e
}

// begun returns once ask has begun and waits, with a function that returns its answer.
func begun(ask func() answer) func() answer {
	c := make(chan answer, 1)
	go func() { c <- ask() }()
	synctest.Wait()
	return sync.OnceValue(func() answer { return <-c })
}

// takes returns a plugin's method that takes d, and fails if its time is over then.
func takes(d time.Duration) func(context.Context, *skel.CmdArgs) error {
	return func(ctx context.Context, _ *skel.CmdArgs) error {
		time.Sleep(d)
		return context.Cause(ctx)
	}
}

// idle checks that nothing is held any more.
func (r *rig) idle() {
	r.t.Helper()
	synctest.Wait()
	r.wantNoLoad()
}

// ended checks that Serve has returned, and when.
func (r *rig) ended(after time.Duration, since time.Time) {
	r.t.Helper()
	<-r.done
	nodetest.Equal(r.t, "Serve took", time.Since(since), after)
	r.wantNoLoad()
}
