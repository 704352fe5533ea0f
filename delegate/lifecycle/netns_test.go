package lifecycle

import "testing"

// A namespace is the recorded one if its device and inode are, and its number,
// where the record has one: the kernel gives the inode of one that has gone to
// the next.
func TestSameNamespace(t *testing.T) {
	t.Parallel()
	recorded := netns{Path: "/a", Dev: 1, Inode: 2, Unique: "x"}
	old := netns{Path: "/a", Dev: 1, Inode: 2}
	for name, tt := range map[string]struct {
		n, now netns
		want   bool
	}{
		"the same":               {recorded, recorded, true},
		"at another path":        {recorded, netns{Path: "/b", Dev: 1, Inode: 2, Unique: "x"}, true},
		"another device":         {recorded, netns{Dev: 9, Inode: 2, Unique: "x"}, false},
		"another inode":          {recorded, netns{Dev: 1, Inode: 9, Unique: "x"}, false},
		"another number":         {recorded, netns{Dev: 1, Inode: 2, Unique: "y"}, false},
		"no number any more":     {recorded, netns{Dev: 1, Inode: 2}, false},
		"none recorded":          {old, recorded, true},
		"none recorded, another": {old, netns{Dev: 1, Inode: 9, Unique: "x"}, false},
		"not there":              {recorded, netns{Path: "/a"}, false},
	} {
		if got := tt.n.same(tt.now); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
