package autoconf

import (
	"os"
	"path"
	"path/filepath"
	"strings"
)

// maxLinks is how many symbolic links may lead to one file; Linux has 40.
const maxLinks = 40

// maxSubdirectories is how many sub-directories are watched; what changes in
// others is seen at the next resync.
const maxSubdirectories = 100

// watched is which directories to watch, without links in their paths, and
// what in them matters.
type watched map[string]*matters

// matters is what in a directory is of interest.
type matters struct {
	all   bool            // everything
	confs bool            // files that end in .conf
	names map[string]bool // these
}

// at returns what matters in dir, to be added to.
func (w watched) at(dir string) *matters {
	if w[dir] == nil {
		w[dir] = &matters{names: map[string]bool{}}
	}
	return w[dir]
}

// wants reports whether an event about file matters. One about a watched
// directory itself does.
func (w watched) wants(file string) bool {
	if w[file] != nil {
		return true
	}
	m, name := w[filepath.Dir(file)], filepath.Base(file)
	return m != nil && (m.all || m.names[name] || m.confs && path.Ext(name) == ".conf")
}

// follow adds every place that decides what the absolute path file leads to:
// the directory entries that are links along the way, and the last one, but for
// a directory, which tells itself when it goes. Where the way ends early, it is
// the entry that is missing, in the nearest directory that exists. It returns
// the last place, and whether something is there.
func (w watched) follow(file string) (last string, there bool) {
	file = filepath.Clean(file)
	root := filepath.VolumeName(file) + string(filepath.Separator)
	at, rest := root, split(file[len(filepath.VolumeName(file)):])
	links := 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			at = filepath.Dir(at)
			continue
		}
		entry := filepath.Join(at, name)
		info, err := os.Lstat(entry)
		if err != nil {
			w.at(at).names[name] = true
			return entry, false
		}
		if info.Mode()&os.ModeSymlink == 0 {
			if !info.IsDir() {
				w.at(at).names[name] = true
				return entry, len(rest) == 0
			}
			at = entry
			continue
		}
		w.at(at).names[name] = true
		target, err := os.Readlink(entry)
		if links++; err != nil || links > maxLinks {
			return entry, false
		}
		if filepath.IsAbs(target) {
			at = root
		}
		rest = append(split(filepath.ToSlash(target)), rest...)
	}
	return at, true
}

// split returns the elements of a path. "." is none; ".." is one, which only
// the file system can tell the meaning of.
func split(file string) []string {
	var parts []string
	for part := range strings.SplitSeq(filepath.ToSlash(file), "/") {
		if part != "" && part != "." {
			parts = append(parts, part)
		}
	}
	return parts
}

// places returns what to watch for a manager of dir, whose output is in
// outDir, and whose readiness file, if any, is ready. It also returns the entry
// by which the readiness file is known: that it was removed is told by an event
// about it, even where it has been made again since.
func places(dir, outDir, ready string, considers func(name string) bool) (w watched, readyEntry string) {
	w = watched{}
	w.watchDir(dir, considers)
	if real, ok := w.follow(outDir); ok {
		w.at(real).all = true
	}
	if ready == "" {
		return w, ""
	}
	w.follow(ready)
	// Not what a link leads to: that goes when a ConfigMap is replaced.
	if parent, ok := (watched{}).follow(filepath.Dir(ready)); ok {
		readyEntry = filepath.Join(parent, filepath.Base(ready))
	}
	return w, readyEntry
}

// watchDir adds a directory of configurations: all in it, what its links lead
// to, and the plugins in its sub-directories.
func (w watched) watchDir(dir string, considers func(name string) bool) {
	real, ok := w.follow(dir)
	if !ok {
		return
	}
	w.at(real).all = true
	entries, _ := os.ReadDir(real) // what could be listed will do
	subdirectories := 0
	for _, entry := range entries {
		name := entry.Name()
		link := entry.Type()&os.ModeSymlink != 0
		if link && considers(name) {
			w.follow(filepath.Join(real, name))
			continue
		}
		if !entry.IsDir() && !link || subdirectories == maxSubdirectories {
			continue
		}
		if info, err := os.Stat(filepath.Join(real, name)); err != nil || !info.IsDir() {
			continue
		}
		if sub, ok := w.follow(filepath.Join(real, name)); ok {
			w.at(sub).confs = true
			subdirectories++
		}
	}
}
