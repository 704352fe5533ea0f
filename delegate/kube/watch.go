package kube

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"reflect"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/metacni/metacni/delegate/kube/internal/apierr"
)

const (
	// downAfter is how long there is no watch at least before that is logged. Each watch ends
	// after a few minutes, and the next one starts at once.
	downAfter = 30 * time.Second

	// An API server sends a bookmark each minute. A watch without any event for
	// silentAfter counts as silent, and is ended after silentFor.
	silentAfter = 90 * time.Second
	silentFor   = 3 * time.Minute

	// healthyAfter is how long a watch lasts at least if nothing is broken.
	healthyAfter = 2 * time.Minute

	// initialLimit is the time between two initial events of a watch, and for a LIST.
	initialLimit = time.Minute

	// longestPause is the longest time that an API server can make a source wait.
	longestPause = time.Minute
)

// A source is what a reflector lists and watches. It knows whether there is a watch,
// and since when there is none.
//
// A reflector begins with a watch whose first events are all objects there are, and makes
// a LIST where that fails. Later watches go on where the last one has ended.
type source struct {
	name  string // of the resource
	log   *slog.Logger
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
	epoch func() int  // of the credentials
	store interface { // that it fills
		synced() bool       // it is complete
		age() time.Duration // since the API server was last heard of
	}

	ctx context.Context //nolint:containedctx // of the view: a reflector passes none to a LIST

	mu       sync.Mutex
	down     time.Time // since when there is no watch; zero if there is one
	err      error     // why there is none
	logged   bool      // that there is none
	listNext bool      // the last initial events were not complete
	busy     error     // why a LIST is of no use now; nil if it may be
	began    int       // the epoch in which the reflector has asked for all objects, or inDoubt
}

// inDoubt is no epoch.
const inDoubt = -1

// run keeps s and the store up to date until ctx, which is s.ctx, ends.
func (s *source) run(ctx context.Context, example runtime.Object, to cache.ReflectorStore) {
	s.disconnected(errors.New("not asked yet"))
	defer s.disconnected(errors.New("the view is closed"))
	ctx = quiet(ctx) // s says what there is to say
	r := cache.NewReflectorWithOptions(s, example, to, cache.ReflectorOptions{
		Name: s.name, Logger: new(logr.Discard()), Backoff: new(backoff()),
	})
	delay := backoff()
	for {
		start := time.Now()
		_ = r.ListAndWatchWithContext(ctx) // s has seen the errors
		if time.Since(start) > healthyAfter {
			delay = backoff()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay.Step()):
		}
	}
}

// backoff is how often a broken API server is tried: after 0.2 s first, and after 10 to
// 20 s in the end.
func backoff() wait.Backoff {
	return wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 10, Cap: 10 * time.Second}
}

// List returns all objects. It makes no request where the watch with all objects, instead
// of which it is called, has found the API server away or busy.
func (s *source) List(opts metav1.ListOptions) (runtime.Object, error) {
	epoch := s.epoch()
	s.mu.Lock()
	busy := s.busy
	s.began, s.busy = epoch, nil
	s.mu.Unlock()
	if busy != nil {
		return nil, busy
	}
	ctx, cancel := context.WithTimeout(s.ctx, initialLimit)
	defer cancel()
	list, err := s.list(ctx, opts)
	if err == nil {
		// A proxy may answer 200 with a list of nothing.
		if m, e := meta.ListAccessor(list); e != nil || m.GetResourceVersion() == "" {
			err = errors.New("the answer is not a list of objects")
		}
	}
	if err != nil {
		s.disconnected(err)
		s.pause(err)
		return nil, opaque(err)
	}
	return list, nil
}

var (
	errIncomplete = errors.New("the initial events of the last watch were not complete")
	errWhole      = errors.New("the next watch must begin with all objects")
)

// Watch begins a watch.
func (s *source) Watch(opts metav1.ListOptions) (watch.Interface, error) {
	initial := opts.SendInitialEvents != nil
	if err := s.ready(initial); err != nil {
		return nil, err
	}
	w, err := s.watch(s.ctx, opts)
	if err != nil {
		s.disconnected(err)
		s.pause(err)
		if initial && isBusy(err) {
			err = opaque(err)
			s.mu.Lock()
			s.busy = err
			s.mu.Unlock()
		}
		return nil, err // if it is busy, the reflector tries to go on with the same version
	}
	s.connected()
	g := &watching{Interface: w, source: s, initial: initial, events: make(chan watch.Event), ending: make(chan struct{})}
	go g.forward()
	return g, nil
}

// isBusy reports whether an API server is away or has no time. What a reflector knows is
// good then, and another request at once does harm.
func isBusy(err error) bool {
	return utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err)
}

// opaque returns err so that the reflector tries again as [source.run] says. Where the
// server is busy, the reflector would wait by itself, whether or not its context has ended.
func opaque(err error) error {
	if isBusy(err) {
		return errors.New(err.Error())
	}
	return err
}

// pause waits as long as the API server asks for with err.
func (s *source) pause(err error) {
	if d := apierr.Delay(err, longestPause); d > 0 {
		select {
		case <-time.After(d):
		case <-s.ctx.Done():
		}
	}
}

// ready returns an error where a watch would be of no use. After initial events without an
// end it is a LIST's turn. A watch must begin with all objects after a change of the
// credentials, which may be for another cluster, and after one that went on in silence: the
// API server may not know the version yet, because its database is an older copy.
func (s *source) ready(initial bool) error {
	epoch := s.epoch()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case initial && s.listNext:
		s.listNext = false
		return errIncomplete
	case !initial && s.began != epoch:
		return errWhole
	}
	s.began = epoch
	return nil
}

// doubt makes the next watch begin with all objects.
func (s *source) doubt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began = inDoubt
}

// connected notes that there is a watch.
func (s *source) connected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down, s.err = time.Time{}, nil
	if s.logged {
		s.logged = false
		s.log.Info("watching the Kubernetes API again", "resource", s.name)
	}
}

// disconnected notes that there is no watch, after each attempt. That it has been so for some time
// is a line of the log.
func (s *source) disconnected(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = cause(err)
	if s.down.IsZero() {
		s.down = time.Now()
	}
	if down := time.Since(s.down); down >= downAfter && !s.logged && s.ctx.Err() == nil {
		s.logged = true
		s.log.Warn("not watching the Kubernetes API, and trying again",
			"resource", s.name, "for", down.Round(time.Second), "synced", s.store.synced(), "age", s.store.age().Round(time.Second), "error", s.err)
	}
}

// state reports whether there is a watch that is not silent, and why not.
func (s *source) state() (alive bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down.IsZero() && s.store.age() < silentAfter, s.err
}

// ended notes that a watch has ended.
func (s *source) ended(initial bool) {
	s.disconnected(errors.New("the watch has ended"))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listNext = initial && !s.store.synced()
}

// A resource is what the API server has of one kind.
type resource struct {
	client   client
	name     string                // network-attachment-definitions
	selector string                // of fields
	list     func() runtime.Object // an empty list

	// newest means that a LIST is never of version 0, which may be older than what is known
	// of an earlier one. API servers before Kubernetes 1.31 read it from their database.
	newest bool
}

// request returns the description of a request that lists r, or watches it.
func (r resource) request(opts metav1.ListOptions) func(*rest.Request) {
	opts.FieldSelector = r.selector
	return func(q *rest.Request) {
		q.Resource(r.name).SpecificallyVersionedParams(&opts, metav1.ParameterCodec, schema.GroupVersion{Version: "v1"})
	}
}

func (r resource) List(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	if r.newest && opts.ResourceVersion == "0" {
		opts.ResourceVersion, opts.Limit = "", 0
	}
	list := r.list()
	return list, r.client.do(ctx, http.MethodGet, r.request(opts)).Into(list)
}

func (r resource) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	opts.Watch = true
	w, err := r.client.watch(ctx, r.request(opts))
	// A client of client-go takes some failures for watches that have ended.
	if err == nil && reflect.TypeOf(w) == reflect.TypeOf(watch.NewEmptyWatch()) {
		err = errors.New("no answer in time, or the connection was cut")
	}
	return w, err
}

// A watching is a watch whose end its source knows, and over which something comes.
type watching struct {
	watch.Interface

	source  *source
	initial bool             // it began with the initial events
	events  chan watch.Event // of Interface
	ending  chan struct{}    // closed by Stop
	stop    sync.Once
}

// ResultChan returns the events.
func (w *watching) ResultChan() <-chan watch.Event { return w.events }

// forward forwards events until the watch has ended, or nothing has come for too long: the
// reflector sees the end and stops the watch. Initial events may take as long as they come: an API
// server that many nodes ask at once would have to send them again.
func (w *watching) forward() {
	defer close(w.events)
	from := w.Interface.ResultChan()
	last, heard := time.Now(), false
	silence := time.NewTimer(w.limit())
	defer silence.Stop()
	for {
		select {
		case e, more := <-from:
			if !more {
				return
			}
			last, heard = time.Now(), true
			select {
			case w.events <- e:
			case <-w.ending:
				return
			}
		case <-silence.C:
			if left := w.limit() - time.Since(last); left > 0 {
				silence.Reset(left)
				continue
			}
			if !w.initial && !heard {
				w.source.doubt()
			}
			return
		case <-w.ending:
			return
		}
	}
}

// limit is how long a watch may be silent.
func (w *watching) limit() time.Duration {
	if w.initial && !w.source.store.synced() {
		return initialLimit
	}
	return silentFor
}

// Stop ends the watch. The reflector stops each watch, those that ended by themselves
// too, and some twice.
func (w *watching) Stop() {
	w.stop.Do(func() {
		close(w.ending)
		w.Interface.Stop()
		for range w.events { // until forward has ended
		}
		w.source.ended(w.initial)
	})
}
