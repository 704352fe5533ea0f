package kube

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
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

	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
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

// inBubble runs do with a source of a.
func inBubble(t *testing.T, a *api, do func(s *source, st *store[known], log *nodetest.Log)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &nodetest.Log{}
		st := newStore(keepDefinition)
		ctx, cancel := context.WithCancel(t.Context())
		s := &source{name: "nads", log: slog.New(slog.NewTextHandler(log, nil)), list: a.list, watch: a.watch, epoch: func() int { return 1 }, store: st, ctx: ctx}
		done := make(chan struct{})
		go func() {
			s.run(ctx, &definition{}, st)
			close(done)
		}()
		synctest.Wait()
		do(s, st, log)
		end := time.Now()
		cancel()
		<-done
		if late := time.Since(end); late > 0 {
			t.Errorf("ended %v after its context", late)
		}
	})
}

func TestAWatchThatIsDownForLongIsLogged(t *testing.T) {
	a := &api{refused: errors.New("no route to host")}
	inBubble(t, a, func(s *source, st *store[known], log *nodetest.Log) {
		settle(downAfter - time.Second)
		nodetest.Equal(t, "logged too early", log.String(), "")
		settle(10 * time.Minute)
		if n := log.Count("\n"); n != 1 || !strings.Contains(log.String(), "no route to host") || !strings.Contains(log.String(), "level=WARN") {
			t.Errorf("log %q, want one line with the reason", log)
		}
		if alive, _ := s.state(); alive || st.synced() {
			t.Errorf("alive %v, synced %v", alive, st.synced())
		}
		a.answer(nil)
		settle(30 * time.Second)
		if n := log.Count("\n"); n != 2 || !strings.Contains(log.String(), "again") {
			t.Errorf("log %q, want another line: it is back", log)
		}
		if alive, _ := s.state(); !alive || !st.synced() {
			t.Errorf("alive %v, synced %v", alive, st.synced())
		}
		for range 20 { // watches that end and begin again are no reason
			settle(time.Minute)
			a.now.Stop()
		}
		settle(time.Minute)
		if _, err := s.state(); err != nil || a.watches < 20 || log.Count("\n") != 2 {
			t.Errorf("%d watches, error %v, log %q", a.watches, err, log)
		}
	})
}

func TestAWatchOverWhichNothingComesIsCut(t *testing.T) {
	a := &api{}
	inBubble(t, a, func(s *source, st *store[known], _ *nodetest.Log) {
		silent := a.now
		settle(silentAfter)
		if alive, _ := s.state(); alive {
			t.Error("alive")
		}
		settle(silentFor)
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

// An API server whose database was restored from a backup does not know the version of the
// view yet: it opens the watch and sends nothing.
func TestAWatchThatGoesOnInSilenceIsReplacedByAllObjects(t *testing.T) {
	a := &api{}
	inBubble(t, a, func(s *source, st *store[known], _ *nodetest.Log) {
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

func object(d nad.Definition) *definition {
	return &definition{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name}, value: d}
}

// mirroring runs do with a store that is mirrored to dir. Of do's arguments settle waits
// until the mirror has nothing to do.
func mirroring(t *testing.T, dir string, do func(st *store[known], settle func(), log *nodetest.Log)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		st := newStore(keepDefinition)
		log := &nodetest.Log{}
		m := newMirror(dir, slog.New(slog.NewTextHandler(log, nil)), st)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			m.run(ctx)
			close(done)
		}()
		do(st, synctest.Wait, log)
		cancel()
		<-done
	})
}

func TestAMirrorFollowsTheStore(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "mirror")
	single := nad.Definition{Ref: ref("blue", "storage"), UID: "u1", Version: "1", Config: config, Resource: "r"}
	list := nad.Definition{Ref: ref("blue", "list"), UID: "u2", Version: "2", Config: `{"name":"l","plugins":[{"type":"x"}]}`}
	mirroring(t, dir, func(st *store[known], settle func(), log *nodetest.Log) {
		settle()
		nodetest.Equal(t, "before the store has synced", mirrored(t, dir), nil)
		_ = st.Replace([]any{object(single), object(list)}, "2")
		settle()
		want := []string{"blue", "blue/list.conflist", "blue/list.key", "blue/storage.conf", "blue/storage.key"}
		nodetest.Equal(t, "files", mirrored(t, dir), want)
		for _, want := range []nad.Definition{single, list} {
			loaded(t, dir, want)
		}
		for name, want := range map[string]fs.FileMode{"blue": 0o700, "blue/list.conflist": 0o600, "blue/list.key": 0o600, "blue/storage.conf": 0o600} {
			info, err := os.Stat(filepath.Join(dir, name))
			nodetest.OK(t, err)
			nodetest.Equal(t, "mode of "+name, info.Mode().Perm(), want)
		}
		single.Version, single.Config = "3", list.Config
		_ = st.Update(object(single))
		settle()
		loaded(t, dir, single)
		_ = st.Delete(object(list))
		bad := object(single)
		bad.err = errors.New("cannot be used")
		_ = st.Update(bad)
		settle()
		nodetest.Equal(t, "after all have gone", mirrored(t, dir), nil)
		nodetest.Equal(t, "log", log.String(), "")
	})
}

func TestAMirrorIsComparedWithTheFirstSync(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	kept := nad.Definition{Ref: ref("blue", "kept"), UID: "u1", Version: "1", Config: config}
	mirroring(t, dir, func(st *store[known], settle func(), _ *nodetest.Log) {
		gone := nad.Definition{Ref: ref("red", "gone"), UID: "u2", Version: "1", Config: config}
		half := nad.Definition{Ref: ref("blue", "half"), UID: "u2", Version: "1", Config: config}
		_ = st.Replace([]any{object(kept), object(gone), object(half)}, "2")
		settle()
	})
	// A crash between the files of a definition, and one while a file is written.
	nodetest.OK(t, os.Remove(filepath.Join(dir, "blue/half.conf")))
	for name, data := range map[string]string{"blue/.tmp-1": "x", "blue/own.conf": config} {
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600))
	}
	before, err := os.Stat(filepath.Join(dir, "blue/kept.conf"))
	nodetest.OK(t, err)
	mirroring(t, dir, func(st *store[known], settle func(), _ *nodetest.Log) {
		settle()
		nodetest.Equal(t, "before the store has synced", len(mirrored(t, dir)), 9)
		_ = st.Replace([]any{object(kept)}, "9")
		settle()
	})
	want := []string{"blue", "blue/kept.conf", "blue/kept.key", "blue/own.conf"} // own.conf is a person's
	nodetest.Equal(t, "files", mirrored(t, dir), want)
	if after, err := os.Stat(filepath.Join(dir, "blue/kept.conf")); err != nil || !os.SameFile(before, after) {
		t.Errorf("a definition that has not changed was written again (%v)", err)
	}
}

// Whether that is so is known when the watch that follows it has gone on for a while.
func TestAMirrorIsNotEmptiedByOneEmptyList(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]bool{"it was right": true, "it was wrong": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			d := nad.Definition{Ref: ref("blue", "storage"), UID: "u1", Version: "1", Config: config}
			mirroring(t, dir, func(st *store[known], settle func(), _ *nodetest.Log) {
				_ = st.Replace([]any{object(d)}, "2")
				settle()
				_ = st.Replace(nil, "3")
				time.Sleep(time.Hour) // without a watch
				settle()
				loaded(t, dir, d)
				if !ends {
					_ = st.Replace([]any{object(d)}, "4")
				}
				for range 10 {
					st.UpdateResourceVersion("5") // a bookmark
					time.Sleep(time.Minute)
				}
				settle()
				if !ends {
					loaded(t, dir, d)
					_ = st.Delete(object(d)) // the watch says so
					settle()
				}
				nodetest.Equal(t, "files", mirrored(t, dir), nil)
			})
		})
	}
}

func TestAMirrorThatCannotBeWrittenIsTriedAgain(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "mirror")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // in the way
		t.Fatal(err)
	}
	d := nad.Definition{Ref: ref("blue", "storage"), Config: config}
	mirroring(t, dir, func(st *store[known], settle func(), log *nodetest.Log) {
		_ = st.Replace([]any{object(d), object(nad.Definition{Ref: ref("blue", "other"), Config: config})}, "1")
		time.Sleep(time.Minute)
		settle()
		nodetest.Equal(t, fmt.Sprintf("lines of %q", log), log.Count("\n"), 1)
		nodetest.OK(t, os.Remove(dir))
		time.Sleep(time.Minute)
		settle()
		loaded(t, dir, d)
		nodetest.Equal(t, fmt.Sprintf("lines of %q", log), log.Count("\n"), 2)
	})
}

// An API server that all nodes ask at once needs its time. To ask it again for everything
// would cost it more. A list replaces initial events that do not end.
func TestInitialEventsMayTakeLongAsLongAsTheyCome(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		api   *api
		after time.Duration
		lists int
	}{
		"they come":       {&api{slow: initialLimit - time.Second}, 10 * initialLimit, 0},
		"they do not end": {&api{endless: true}, initialLimit + time.Second, 1},
	} {
		t.Run(name, func(t *testing.T) {
			a := test.api
			inBubble(t, a, func(_ *source, st *store[known], _ *nodetest.Log) {
				settle(test.after)
				if !st.synced() || a.wholes != 1 || a.lists != test.lists {
					t.Errorf("synced %v, %d watches with all objects, %d lists, want one watch and %d lists", st.synced(), a.wholes, a.lists, test.lists)
				}
			})
		})
	}
}

// A server that is away or busy is left alone for as long as it asks for. No LIST follows on a watch
// that it had no time for, and a later watch goes on where the last one was.
func TestAServerThatIsBusyIsNotAskedForEverything(t *testing.T) {
	t.Parallel()
	for name, busy := range map[string]error{
		"connections are refused": &url.Error{Op: "Get", URL: "https://kubernetes", Err: syscall.ECONNREFUSED},
		"too many requests":       apierrors.NewTooManyRequestsError("busy"),
		"in 20 s":                 apierrors.NewTooManyRequests("busy", 20),
	} {
		for watch, first := range map[string]bool{"first watch": true, "next watch": false} {
			t.Run(name+", "+watch, func(t *testing.T) {
				a := &api{}
				if first {
					a.refused = busy
				}
				inBubble(t, a, func(s *source, st *store[known], _ *nodetest.Log) {
					if !first {
						settle(time.Minute)
						a.answer(busy)
						a.now.Stop()
					}
					settle(2 * time.Minute)
					if alive, err := s.state(); alive || err == nil || a.watches < 3 || name == "in 20 s" && a.watches > 8 {
						t.Errorf("alive %v, error %v, %d watches in two minutes", alive, err, a.watches)
					}
					a.answer(nil)
					settle(time.Minute)
					if _, err := s.state(); err != nil || !st.synced() || a.lists != 0 || a.wholes != 1 {
						t.Errorf("error %v, synced %v, %d lists, %d watches with all objects, want only the first", err, st.synced(), a.lists, a.wholes)
					}
					a.answer(busy)
					a.now.Stop()
					settle(time.Second) // it ends while it waits
				})
			})
		}
	}
}

func TestAWatchThatWaitsForTheServerEndsWithItsView(t *testing.T) { // inBubble looks
	inBubble(t, &api{refused: apierrors.NewTooManyRequests("busy", 20)}, func(*source, *store[known], *nodetest.Log) {})
}

// mirrored are those below dir.
func mirrored(t *testing.T, dir string) []string {
	t.Helper()
	return (&nodetest.Node{TB: t, Dir: dir}).Files("")
}

// loaded wants a mirror to have a definition.
func loaded(t *testing.T, dir string, want nad.Definition) {
	t.Helper()
	got, err := nad.Load(os.DirFS(dir), want.Ref)
	nodetest.OK(t, err)
	nodetest.Equal(t, "definition in the mirror", got, want)
}

func TestTheMirrorServesUntilTheViewHasSynced(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	d := storage(s)
	c := Config{Mirror: t.TempDir()}
	first := synced(t, s, c)
	nodetest.Until(t, "the mirror has it", func() bool { got, _ := nad.Load(os.DirFS(c.Mirror), d.Ref); return got == d })
	first.Close()

	s.Stop()
	ended, end := context.WithCancel(t.Context())
	end() // whoever waits fails
	second := open(t, s, c)
	got, err := second.Definition(ended, d.Ref)
	nodetest.OK(t, err)
	nodetest.Equal(t, "without an API", got, d)
	_, err = second.Definition(ended, ref("blue", "other"))
	unknown(t, err)
	c.MaxViewAge = time.Minute
	_, err = open(t, s, c).Definition(ended, d.Ref)
	unknown(t, err)

	changed := kubetest.Put(s, kubetest.Definition{Namespace: "blue", Name: "storage", Config: `{"type":"macvlan"}`})
	s.Start()
	awaitSync(t, second)
	got, err = second.Definition(t.Context(), d.Ref)
	nodetest.OK(t, err)
	nodetest.Equal(t, "version with an API", got.Version, changed.Version)
}
