package autoconf

import (
	"testing"
	"time"
)

// With bad input from the start, nothing is published, and what an earlier
// manager published stays.
func TestBadFromTheStart(t *testing.T) {
	t.Parallel()
	s := newStory("10-a.conflist", "")
	s.disk.forms[".conflist"] = form{regular: true, mode: defaultMode, data: []byte("earlier")}
	s.look()
	s.after(time.Hour).look()
	s.expect(t, "-  none 10s", "-  none")
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
		s.mem.once = true
		s.look()
		s.expect(t, "publish 20-b.conf")
	})
}
