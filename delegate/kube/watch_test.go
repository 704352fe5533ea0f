package kube

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// An api is an API server in the same goroutine bubble as its client.
type api struct {
	mu sync.Mutex

	refused error              // what it answers
	endless bool               // initial events have no end
	slow    time.Duration      // between two initial events
	now     *watch.FakeWatcher // the watch that is open
	lists   int
	watches int
	wholes  int // watches that begin with all objects
}

func (a *api) list(context.Context, metav1.ListOptions) (runtime.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lists++
	if a.refused != nil {
		return nil, a.refused
	}
	return &definitionList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, nil
}

func (a *api) watch(_ context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.watches++
	if a.refused != nil {
		return nil, a.refused
	}
	a.now = watch.NewFake()
	if opts.SendInitialEvents != nil {
		a.wholes++
	}
	if opts.SendInitialEvents != nil && !a.endless {
		go initialEvents(a.now, a.slow)
	}
	return a.now, nil
}

// initialEvents sends ten definitions over a watch, and the end of the initial events.
func initialEvents(w *watch.FakeWatcher, pause time.Duration) {
	for i := range 10 {
		time.Sleep(pause)
		if w.IsStopped() {
			return
		}
		w.Add(&definition{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: strconv.Itoa(i), ResourceVersion: "1"}})
	}
	w.Action(watch.Bookmark, bookmark(metav1.InitialEventsAnnotationKey))
}

// answer changes what the API server answers.
func (a *api) answer(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refused = err
}

func bookmark(annotation string) *definition {
	return &definition{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "2", Annotations: map[string]string{annotation: "true"}}}
}

// A logText is a log.
type logText struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (x *logText) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b.Write(p)
}

func (x *logText) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b.String()
}

// inBubble runs do with a source of a.
func inBubble(t *testing.T, a *api, do func(s *source, st *store[known], log *logText)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var log logText
		st := newStore(keepDefinition)
		ctx, cancel := context.WithCancel(t.Context())
		s := &source{name: "nads", log: slog.New(slog.NewTextHandler(&log, nil)), list: a.list, watch: a.watch, epoch: func() int { return 1 }, store: st, ctx: ctx}
		done := make(chan struct{})
		go func() {
			s.run(ctx, &definition{}, st)
			close(done)
		}()
		synctest.Wait()
		do(s, st, &log)
		end := time.Now()
		cancel()
		<-done
		if late := time.Since(end); late > 0 {
			t.Errorf("ended %v after its context", late)
		}
	})
}

func TestAWatchThatIsDownForLongIsLogged(t *testing.T) {
	t.Parallel()
	a := &api{refused: errors.New("no route to host")}
	inBubble(t, a, func(s *source, st *store[known], log *logText) {
		time.Sleep(downAfter - time.Second)
		synctest.Wait()
		nodetest.Equal(t, "logged too early", log.String(), "")
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "no route to host") || !strings.Contains(log.String(), "level=WARN") {
			t.Errorf("log %q, want one line with the reason", log)
		}
		if alive, _ := s.state(); alive || st.synced() {
			t.Errorf("alive %v, synced %v", alive, st.synced())
		}
		a.answer(nil)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if n := strings.Count(log.String(), "\n"); n != 2 || !strings.Contains(log.String(), "again") {
			t.Errorf("log %q, want another line: it is back", log)
		}
		if alive, _ := s.state(); !alive || !st.synced() {
			t.Errorf("alive %v, synced %v", alive, st.synced())
		}
	})
}

func TestAWatchThatEndsAndBeginsAgainIsNotLogged(t *testing.T) {
	t.Parallel()
	a := &api{}
	inBubble(t, a, func(s *source, _ *store[known], log *logText) {
		for range 20 {
			time.Sleep(time.Minute)
			synctest.Wait()
			a.now.Stop()
		}
		time.Sleep(time.Minute)
		if _, err := s.state(); err != nil || a.watches < 20 || log.String() != "" {
			t.Errorf("%d watches, error %v, log %q", a.watches, err, log)
		}
	})
}

func TestAWatchOverWhichNothingComesIsCut(t *testing.T) {
	t.Parallel()
	a := &api{}
	inBubble(t, a, func(s *source, st *store[known], _ *logText) {
		silent := a.now
		time.Sleep(silentAfter)
		synctest.Wait()
		if alive, _ := s.state(); alive {
			t.Error("alive")
		}
		time.Sleep(silentFor)
		synctest.Wait()
		if !silent.IsStopped() || a.watches != 2 || a.lists != 0 {
			t.Errorf("stopped %v, %d watches, %d lists, want it cut, and another watch", silent.IsStopped(), a.watches, a.lists)
		}
		speaking := a.now
		for range 20 {
			time.Sleep(time.Minute)
			speaking.Action(watch.Bookmark, bookmark("other"))
			synctest.Wait()
		}
		if alive, _ := s.state(); speaking.IsStopped() || !alive || st.age() > time.Second {
			t.Errorf("stopped %v, alive %v, age %v: bookmarks are signs of life", speaking.IsStopped(), alive, st.age())
		}
	})
}

// An API server that all nodes ask at once needs its time. To ask it again for everything
// would cost it more.
func TestInitialEventsMayTakeLongAsLongAsTheyCome(t *testing.T) {
	t.Parallel()
	a := &api{slow: initialLimit - time.Second}
	inBubble(t, a, func(_ *source, st *store[known], _ *logText) {
		settle(10 * initialLimit)
		if !st.synced() || a.watches != 1 || a.lists != 0 {
			t.Errorf("synced %v, %d watches, %d lists, want one watch", st.synced(), a.watches, a.lists)
		}
	})
}

func TestInitialEventsThatDoNotEndAreReplacedByAList(t *testing.T) {
	t.Parallel()
	a := &api{endless: true}
	inBubble(t, a, func(_ *source, st *store[known], _ *logText) {
		time.Sleep(initialLimit + time.Second)
		synctest.Wait()
		if !st.synced() || a.lists != 1 {
			t.Errorf("synced %v, %d lists, want one LIST", st.synced(), a.lists)
		}
	})
}

// busy are answers after which a LIST would be answered in the same way, or be one more
// burden.
func busy() map[string]error {
	return map[string]error{
		"connections are refused": &url.Error{Op: "Get", URL: "https://kubernetes", Err: syscall.ECONNREFUSED},
		"too many requests":       apierrors.NewTooManyRequestsError("busy"),
	}
}

func TestAWatchGoesOnWhereItWasWhenTheServerIsBack(t *testing.T) {
	t.Parallel()
	for name, answer := range busy() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &api{}
			inBubble(t, a, func(s *source, _ *store[known], _ *logText) {
				settle(time.Minute)
				a.answer(answer)
				a.now.Stop()
				settle(10 * time.Minute)
				if alive, err := s.state(); alive || err == nil {
					t.Errorf("alive %v, error %v", alive, err)
				}
				a.answer(nil)
				settle(time.Minute)
				if _, err := s.state(); err != nil || a.lists != 0 || a.wholes != 1 {
					t.Errorf("error %v, %d lists, %d watches with all objects, want only the first", err, a.lists, a.wholes)
				}
			})
		})
	}
}

func TestNoListFollowsAWatchThatTheServerHadNoTimeFor(t *testing.T) {
	t.Parallel()
	for name, answer := range busy() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &api{refused: answer}
			inBubble(t, a, func(_ *source, st *store[known], _ *logText) {
				settle(time.Minute)
				if a.watches < 3 || a.lists != 0 {
					t.Errorf("%d watches and %d lists, want no list", a.watches, a.lists)
				}
				a.answer(nil)
				settle(time.Minute)
				if !st.synced() || a.lists != 0 {
					t.Errorf("synced %v, %d lists, want no list", st.synced(), a.lists)
				}
			})
		})
	}
}

func TestAWatchWaitsAsLongAsTheServerAsksFor(t *testing.T) {
	t.Parallel()
	for name, synced := range map[string]bool{"first watch": false, "next watch": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			busy := apierrors.NewTooManyRequests("busy", 20)
			a := &api{}
			if !synced {
				a.refused = busy
			}
			inBubble(t, a, func(_ *source, _ *store[known], _ *logText) {
				if synced {
					a.answer(busy)
					a.now.Stop()
				}
				settle(2 * time.Minute)
				if a.watches < 3 || a.watches > 8 || a.lists != 0 {
					t.Errorf("%d watches and %d lists in two minutes, want one watch in 20 to 50 s", a.watches, a.lists)
				}
			})
		})
	}
}

// An API server whose database was restored from a backup does not know the version of the
// view yet: it opens the watch and sends nothing.
func TestAWatchThatGoesOnInSilenceIsReplacedByAllObjects(t *testing.T) {
	t.Parallel()
	a := &api{}
	inBubble(t, a, func(s *source, st *store[known], _ *logText) {
		settle(time.Minute)
		a.now.Stop()
		settle(2*silentFor + time.Minute)
		if a.wholes != 2 || a.lists != 0 {
			t.Errorf("%d watches with all objects and %d lists, want another watch with all objects", a.wholes, a.lists)
		}
		speaking := a.now
		for range 10 {
			time.Sleep(time.Minute)
			speaking.Action(watch.Bookmark, bookmark("other"))
			synctest.Wait()
		}
		speaking.Stop()
		settle(time.Minute)
		a.now.Action(watch.Bookmark, bookmark("other"))
		settle(silentFor + time.Minute)
		if a.wholes != 2 || a.watches != 6 {
			t.Errorf("%d watches, %d of them with all objects, want the last two to go on: the version is known", a.watches, a.wholes)
		}
	})
}

func TestAWatchThatWaitsForTheServerEndsWithItsView(t *testing.T) {
	t.Parallel() // inBubble looks
	inBubble(t, &api{refused: apierrors.NewTooManyRequests("busy", 20)}, func(*source, *store[known], *logText) {})
}
