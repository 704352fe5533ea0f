package autoconf

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
)

// A story is a manager without a world: what is in the directory, what is
// published, and what time it is, are values.
type story struct {
	policy policy
	accept func(netconf.File) bool
	mem    memory
	now    time.Time
	fsys   fstest.MapFS
	ready  bool
	disk   disk
	fails  error // what publishing comes to
	trace  []string
}

func newStory(files ...string) *story {
	return &story{
		policy: policy{grace: defaultGrace, name: "00-multinet", mode: defaultMode, own: our()},
		now:    time.Unix(1e9, 0),
		fsys:   tree(files...),
		ready:  true,
		disk:   disk{forms: map[string]form{}},
	}
}

// look is one turn, and what came of it as a line: what was done, the primary
// network, what is degraded, and for how long to wait.
func (s *story) look() step {
	f := facts{ready: s.ready, disk: s.disk, found: finder{own: our(), accept: s.accept}.find(s.fsys)}
	if f.found.primary.Name != "" {
		n, err := render(plugin(`{"type":"multinet"}`), f.found.primary)
		if err == nil {
			f.doc, err = write(n)
			f.doc.primary = f.found.primary.Name
		}
		f.docErr = err
	}
	next, step := s.policy.next(s.mem, f, s.now)
	err := s.fails
	if err == nil && step.publish {
		s.disk.forms = map[string]form{extension: {regular: true, mode: defaultMode, data: next.want.data}}
	}
	s.policy.did(&next, &step, err, s.now)
	s.mem = next
	line := "- " + s.mem.file
	if step.publish {
		line = "publish " + s.mem.file
	}
	for _, err := range step.degraded {
		for name, is := range map[string]error{
			"none": ErrNoPrimary, "gone": errGone, "bad": errBadPrimary, "unready": ErrNotReady, "lost": ErrReadinessLost,
			"undone": errUndone, "shadowed": ErrShadowed, "failed": errTest,
		} {
			if errors.Is(err, is) {
				line += " " + name
			}
		}
	}
	if step.wait != 0 {
		line += " " + step.wait.String()
	}
	if step.end != nil {
		line += " END"
	}
	s.trace = append(s.trace, strings.TrimSpace(line))
	return step
}

func (s *story) after(d time.Duration) *story { s.now = s.now.Add(d); return s }

func (s *story) expect(t *testing.T, want ...string) {
	t.Helper()
	nodetest.Equal(t, "got", s.trace, want)
}

var errTest = errors.New("test")

func (s *story) set(name, content string) { s.fsys[name] = &fstest.MapFile{Data: []byte(content)} }

// A network that is refused is no bad input: it is as good as gone.
func TestRefusedLater(t *testing.T) {
	t.Parallel()
	s := newStory("10-a.conflist", calico, "20-b.conf", flannel)
	s.accept = func(f netconf.File) bool { return f.Network.Name() != "lo" }
	s.look()
	s.set("10-a.conflist", `{"cniVersion":"1.0.0","name":"lo","type":"loopback"}`)
	s.look()
	s.after(defaultGrace).look()
	s.expect(t, "publish 10-a.conflist", "- 10-a.conflist gone 10s", "publish 20-b.conf")
}

// Bad input changes nothing but the state, for as long as it is bad.
func TestLastGoodStaysOnBadInput(t *testing.T) {
	t.Parallel()
	s := newStory("10-a.conflist", calico, "20-b.conf", flannel)
	s.look()
	for _, bad := range []string{"", "{", calico[:40], `[]`, `{"name":"x","type":"multinet"}`} {
		s.set("10-a.conflist", bad)
		s.after(time.Hour).look()
	}
	if !s.disk.holds(s.mem.want, defaultMode) || s.mem.want.primary != "10-a.conflist" {
		t.Error("the last good one is not published")
	}
	s.set("10-a.conflist", strings.ReplaceAll(calico, "portMappings", "bandwidth"))
	s.look()
	s.look()
	s.expect(
		t, "publish 10-a.conflist",
		"- 10-a.conflist bad", "- 10-a.conflist bad", "- 10-a.conflist bad", "- 10-a.conflist bad", "- 10-a.conflist bad",
		"publish 10-a.conflist", "- 10-a.conflist",
	)
	if data := string(s.mem.published.data); strings.Contains(data, "portMappings") || !strings.Contains(data, `"capabilities":{"bandwidth":true}`) {
		t.Errorf("M6: stale capabilities: %s", data)
	}
}

// The primary network's file goes; another appears.
func TestPrimaryThatIsGone(t *testing.T) {
	t.Parallel()
	t.Run("next", func(t *testing.T) {
		t.Parallel()
		s := newStory("10-a.conflist", calico, "20-b.conf", flannel)
		s.look()
		delete(s.fsys, "10-a.conflist")
		s.look()
		s.after(4 * time.Second).look()
		s.after(6 * time.Second).look()
		s.look()
		s.expect(t, "publish 10-a.conflist", "- 10-a.conflist gone 10s", "- 10-a.conflist gone 6s", "publish 20-b.conf", "- 20-b.conf")
	})
	t.Run("renamed", func(t *testing.T) {
		t.Parallel()
		for _, to := range []string{"05-a.conflist", "15-a.conflist"} {
			s := newStory("10-a.conflist", calico, "20-b.conf", flannel)
			s.look()
			delete(s.fsys, "10-a.conflist")
			s.set(to, calico)
			s.look()
			s.look()
			s.expect(t, "publish 10-a.conflist", "- "+to, "- "+to)
			if got := s.mem.published.primary; got != to {
				t.Errorf("published for %q", got)
			}
		}
	})
	t.Run("renamed and changed", func(t *testing.T) {
		t.Parallel()
		s := newStory("10-a.conflist", calico, "20-b.conf", flannel)
		s.look()
		delete(s.fsys, "10-a.conflist")
		s.set("15-a.conflist", strings.ReplaceAll(calico, "portMappings", "bandwidth"))
		s.look()
		s.after(defaultGrace).look()
		s.expect(t, "publish 10-a.conflist", "- 10-a.conflist gone 10s", "publish 15-a.conflist")
	})
	t.Run("back in time", func(t *testing.T) {
		t.Parallel()
		s := newStory("10-a.conflist", calico, "20-b.conf", flannel)
		s.look()
		for range 3 { // each time, grace begins anew
			delete(s.fsys, "10-a.conflist")
			s.look()
			s.set("10-a.conflist", calico)
			s.after(9 * time.Second).look()
		}
		s.expect(
			t, "publish 10-a.conflist", "- 10-a.conflist gone 10s", "- 10-a.conflist",
			"- 10-a.conflist gone 10s", "- 10-a.conflist", "- 10-a.conflist gone 10s", "- 10-a.conflist",
		)
	})
	t.Run("keep", func(t *testing.T) {
		t.Parallel()
		s := newStory("10-a.conflist", calico)
		s.look()
		delete(s.fsys, "10-a.conflist")
		s.look()
		s.after(time.Hour).look()
		s.disk.forms = map[string]form{} // it is restored all the same
		s.look()
		s.set("20-b.conf", flannel)
		s.look()
		s.expect(t, "publish 10-a.conflist", "- 10-a.conflist none 10s", "- 10-a.conflist none", "publish 10-a.conflist none", "publish 20-b.conf")
	})
	t.Run("broken, then gone", func(t *testing.T) {
		t.Parallel()
		s := newStory("10-a.conflist", calico, "20-b.conf", flannel)
		s.look()
		s.set("10-a.conflist", "")
		s.after(time.Minute).look()
		delete(s.fsys, "10-a.conflist")
		s.after(time.Minute).look()
		s.expect(t, "publish 10-a.conflist", "- 10-a.conflist bad", "- 10-a.conflist gone 10s")
	})
	t.Run("better", func(t *testing.T) {
		t.Parallel()
		s := newStory("10-a.conflist", calico)
		s.look()
		s.set("05-z.conf", "{")
		s.look()
		s.set("05-z.conf", flannel)
		s.look()
		s.set("20-b.conf", flannel)
		s.look()
		s.expect(t, "publish 10-a.conflist", "- 10-a.conflist", "publish 05-z.conf", "- 05-z.conf")
	})
	t.Run("renamed to a better name", func(t *testing.T) {
		t.Parallel()
		s := newStory("10-a.conflist", calico)
		s.look()
		delete(s.fsys, "10-a.conflist")
		s.set("05-a.conflist", strings.ReplaceAll(calico, "1.0.0", "0.4.0"))
		s.look()
		s.expect(t, "publish 10-a.conflist", "publish 05-a.conflist")
	})
}

// What others undo is restored, at once, then ever more slowly, and
// at once again after a minute of peace.
func TestRestoringSlowsDown(t *testing.T) {
	t.Parallel()
	s := newStory("10-a.conflist", calico)
	s.look()
	var waited []time.Duration
	for range 10 {
		s.after(10 * time.Millisecond)
		s.disk.forms[".conflist"] = form{regular: true, mode: defaultMode, data: []byte(flannel)}
		step := s.look()
		waited = append(waited, step.wait.Round(time.Second))
		if step.wait != 0 {
			if again := s.look(); again.publish || again.wait != step.wait {
				t.Errorf("looking again: %+v", again)
			}
			step = s.after(step.wait).look()
		}
		if !step.publish || !step.restores {
			t.Fatalf("not restored: %q", s.trace)
		}
	}
	want := "[0s 1s 2s 4s 8s 16s 32s 1m0s 1m0s 1m0s]"
	nodetest.Equal(t, "pauses", fmt.Sprint(waited), want)
	nodetest.Equal(t, "restored", s.mem.restored, 10)
	s.after(time.Minute)
	for _, damage := range []map[string]form{
		{},
		{".conflist": {regular: true, mode: defaultMode}},
		{".conflist": {regular: true, mode: 0o644, data: s.mem.want.data}},
		{".conflist": {mode: defaultMode}},
		{".conflist": {regular: true, err: errTest}},
	} {
		s.trace = nil
		s.disk.forms = damage
		s.look()
		s.look()
		s.expect(t, "publish 10-a.conflist", "- 10-a.conflist")
		s.after(time.Minute)
	}
}

// A failure to write is waited out, and does not stop anything else.
func TestPublishingFails(t *testing.T) {
	t.Parallel()
	s := newStory("10-a.conflist", calico)
	s.fails = errTest
	for range 3 {
		s.look()
		s.after(s.look().wait)
	}
	s.fails = nil
	s.look()
	s.look()
	s.expect(
		t, "publish 10-a.conflist failed 1s", "- 10-a.conflist failed 1s", "publish 10-a.conflist failed 2s", "- 10-a.conflist failed 2s",
		"publish 10-a.conflist failed 4s", "- 10-a.conflist failed 4s", "publish 10-a.conflist", "- 10-a.conflist",
	)
	if s.mem.restored != 0 {
		t.Errorf("restored %d times", s.mem.restored)
	}
}

// Nothing before the readiness file is there; its loss is the end.
func TestNothingIsDoneWithoutReadiness(t *testing.T) {
	t.Parallel()
	s := newStory("10-a.conflist", calico)
	s.ready = false
	s.look()
	s.after(time.Hour).look()
	s.ready = true
	s.look()
	s.ready = false
	if end := s.look().end; !errors.Is(end, ErrReadinessLost) {
		t.Error(end)
	}
	s.expect(t, "-  unready", "-  unready", "publish 10-a.conflist", "- 10-a.conflist lost END")
	if len(s.disk.forms) != 1 {
		t.Error("the file was removed")
	}
}

// The other form goes when the version changes, unless it is not ours.
func TestOtherFormIsRemoved(t *testing.T) {
	t.Parallel()
	s := newStory("10-a.conflist", calico)
	s.disk.forms[".conf"] = form{regular: true, data: []byte(`{"type":"multinet","name":"old"}`)}
	s.look()
	s.disk.forms[".conf"] = form{regular: true, data: []byte(`{"type":"multinet","name":"old"}`)}
	s.look()
	s.disk.forms[".conf"] = form{regular: true, data: []byte(flannel)}
	s.look()
	s.expect(t, "publish 10-a.conflist", "publish 10-a.conflist", "- 10-a.conflist shadowed")
}

// Runtimes take the first file; it is told when that is not ours.
func TestShadowed(t *testing.T) {
	t.Parallel()
	for first, shadowed := range map[string]bool{"": false, "00-a.conf": true, "00-multinet-a.conf": true} {
		s := newStory("10-a.conflist", calico)
		s.disk.first = first
		s.look()
		if strings.Contains(s.trace[0], "shadowed") != shadowed || !strings.HasPrefix(s.trace[0], "publish") {
			t.Errorf("%q: %s", first, s.trace)
		}
	}
}

// The directory being gone is not a change of our file, and costs no pause.
func TestDirectoryGone(t *testing.T) {
	t.Parallel()
	s := newStory("10-a.conflist", calico)
	s.look()
	there, files := s.disk, s.fsys
	for range 5 {
		s.disk, s.fsys = disk{noDir: true, err: errTest}, fstest.MapFS{}
		s.after(time.Second).look()
		there.forms = map[string]form{}
		s.disk, s.fsys = there, files
		s.after(2 * longPause).look()
	}
	if got := fmt.Sprint(s.trace[1:3]); got != "[- 10-a.conflist none failed 10s publish 10-a.conflist]" || s.mem.restored != 5 {
		t.Error(got, s.mem.restored)
	}
}

// With bad input from the start, nothing is published, and what an earlier
// manager published stays.
func TestBadFromTheStart(t *testing.T) {
	t.Parallel()
	s := newStory("10-a.conflist", "")
	s.disk.forms[".conflist"] = form{regular: true, mode: defaultMode, data: []byte("earlier")}
	s.look()
	s.after(time.Hour).look()
	s.expect(t, "-  none", "-  none")
	if string(s.disk.forms[".conflist"].data) != "earlier" {
		t.Error("what was there is gone")
	}
}

// A manager that begins while the primary network's file is torn gives it
// time before it takes another, where an earlier manager has published; and
// takes no time where what is published is right.
func TestBrokenAtTheStart(t *testing.T) {
	t.Parallel()
	begin := func() *story {
		s := newStory("10-a.conflist", calico, "20-b.conf", flannel)
		s.look()
		s.mem, s.trace = memory{}, nil
		s.set("10-a.conflist", calico[:20])
		return s
	}
	t.Run("whole again", func(t *testing.T) {
		t.Parallel()
		s := begin()
		s.look()
		s.set("10-a.conflist", calico)
		s.after(9 * time.Second).look()
		s.expect(t, "-  bad 10s", "- 10-a.conflist")
	})
	t.Run("for good", func(t *testing.T) {
		t.Parallel()
		s := begin()
		s.look()
		s.after(4 * time.Second).look()
		s.after(6 * time.Second).look()
		s.after(time.Hour).look()
		s.expect(t, "-  bad 10s", "-  bad 6s", "publish 20-b.conf", "- 20-b.conf")
	})
	t.Run("published already", func(t *testing.T) {
		t.Parallel()
		s := newStory("10-a.conflist", calico[:20], "20-b.conf", flannel)
		s.look()
		s.mem = memory{}
		s.look()
		s.expect(t, "publish 20-b.conf", "- 20-b.conf")
	})
	t.Run("once", func(t *testing.T) {
		t.Parallel()
		s := begin()
		s.policy.once = true
		s.look()
		s.expect(t, "publish 20-b.conf")
	})
}

func TestError(t *testing.T) {
	t.Parallel()
	decode := &netconf.Error{Kind: netconf.ErrDecode, Key: "type"}
	tests := []struct {
		err  error
		text string
		code uint
	}{
		{fail("publish", "/x", fs.ErrPermission), `publish "/x": permission denied`, 5},
		{fail("read", "a\nb", errTooLarge), `read "a\nb": larger than 1 MiB`, 5},
		{fail("use", "", because{ErrInvalid, errors.New("Dir: x")}), `use: invalid: Dir: x`, 7},
		{fail("publish", "/x", because{ErrInvalid, &netconf.Error{Kind: netconf.ErrInvalid, Key: "name"}}), `publish "/x": invalid configuration: key "name"`, 7},
		{fail("follow", "", ErrNoPrimary), `follow: no primary network`, 7},
		{fail("read", "x", errOwn), `read "x": has our own plugin, or refers to the published file`, 7},
		{fail("read", "x", errRefused), `read "x": refused`, 7},
		{fail("read", "x", decode), `read "x": cannot decode configuration: key "type"`, 6},
		{fail("follow", "", because{errBadPrimary, decode}), `follow: the primary network cannot be used: cannot decode configuration: key "type"`, 6},
		{fail("follow", "", errors.Join(fs.ErrExist, errUndone)), "follow: file already exists\nchanged or removed by others", 11},
		{fail("run", "", ErrNotReady), `run: not ready: the readiness file does not exist`, 11},
		{fail("run", "", ErrReadinessLost), `run: the readiness file was removed`, 11},
		{fail("lock", "", ErrLocked), `lock: another manager is at work`, 11},
	}
	for _, tt := range tests {
		nodetest.Equal(t, "text", tt.err.Error(), tt.text)
		nodetest.Code(t, tt.err, tt.code)
	}
	if fail("x", "", nil) != nil {
		t.Error("an error of nothing")
	}
}
