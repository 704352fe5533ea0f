package kube

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
)

// tree is the files below dir.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if want := map[bool]fs.FileMode{false: 0o600, true: 0o700}[d.IsDir()]; info.Mode().Perm() != want && path != dir {
			t.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
		}
		if rel, _ := filepath.Rel(dir, path); rel != "." {
			files = append(files, rel)
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return files
}

func object(d nad.Definition) *definition {
	return &definition{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name}, value: d}
}

// mirroring runs do with a store that is mirrored to dir. Of do's arguments settle waits
// until the mirror has nothing to do.
func mirroring(t *testing.T, dir string, do func(st *store[known], settle func(), log *logText)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		st := newStore(keepDefinition)
		var log logText
		m := newMirror(dir, slog.New(slog.NewTextHandler(&log, nil)), st)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			m.run(ctx)
			close(done)
		}()
		do(st, synctest.Wait, &log)
		cancel()
		<-done
	})
}

func TestAMirrorFollowsTheStore(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "mirror")
	single := nad.Definition{Ref: ref("blue", "storage"), UID: "u1", Version: "1", Config: config, Resource: "r"}
	list := nad.Definition{Ref: ref("blue", "list"), UID: "u2", Version: "2", Config: `{"name":"l","plugins":[{"type":"x"}]}`}
	mirroring(t, dir, func(st *store[known], settle func(), log *logText) {
		settle()
		nodetest.Equal(t, "before the store has synced", tree(t, dir), nil)
		_ = st.Replace([]any{object(single), object(list)}, "2")
		settle()
		want := []string{"blue", "blue/list.conflist", "blue/list.key", "blue/storage.conf", "blue/storage.key"}
		nodetest.Equal(t, "files", tree(t, dir), want)
		for _, want := range []nad.Definition{single, list} {
			loaded(t, dir, want)
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
		nodetest.Equal(t, "after all have gone", tree(t, dir), nil)
		nodetest.Equal(t, "log", log.String(), "")
	})
}

func TestAMirrorIsComparedWithTheFirstSync(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	kept := nad.Definition{Ref: ref("blue", "kept"), UID: "u1", Version: "1", Config: config}
	mirroring(t, dir, func(st *store[known], settle func(), _ *logText) {
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
	mirroring(t, dir, func(st *store[known], settle func(), _ *logText) {
		settle()
		nodetest.Equal(t, "before the store has synced", len(tree(t, dir)), 9)
		_ = st.Replace([]any{object(kept)}, "9")
		settle()
	})
	want := []string{"blue", "blue/kept.conf", "blue/kept.key", "blue/own.conf"} // own.conf is a person's
	nodetest.Equal(t, "files", tree(t, dir), want)
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
			mirroring(t, dir, func(st *store[known], settle func(), _ *logText) {
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
				nodetest.Equal(t, "files", tree(t, dir), nil)
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
	mirroring(t, dir, func(st *store[known], settle func(), log *logText) {
		_ = st.Replace([]any{object(d), object(nad.Definition{Ref: ref("blue", "other"), Config: config})}, "1")
		time.Sleep(time.Minute)
		settle()
		nodetest.Equal(t, fmt.Sprintf("lines of %q", log), strings.Count(log.String(), "\n"), 1)
		nodetest.OK(t, os.Remove(dir))
		time.Sleep(time.Minute)
		settle()
		loaded(t, dir, d)
		nodetest.Equal(t, fmt.Sprintf("lines of %q", log), strings.Count(log.String(), "\n"), 2)
	})
}

func TestTheMirrorServesUntilTheViewHasSynced(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	d := storage(s)
	mirror := t.TempDir()
	file, err := s.Kubeconfig(t.TempDir())
	nodetest.OK(t, err)
	first := openConfig(t, Config{Kubeconfig: file, Mirror: mirror})
	awaitSync(t, first)
	for {
		if got, err := nad.Load(os.DirFS(mirror), d.Ref); err == nil && got == d {
			break
		}
		runtime.Gosched()
	}
	first.Close()

	s.Stop()
	second := openConfig(t, Config{Kubeconfig: file, Mirror: mirror})
	if got, err := second.Definition(briefly(t), d.Ref); err != nil || got != d {
		t.Errorf("without an API: %+v, %v", got, err)
	}
	_, err = second.Definition(briefly(t), ref("blue", "other"))
	unknown(t, err)
	bounded := openConfig(t, Config{Kubeconfig: file, Mirror: mirror, MaxViewAge: time.Minute})
	_, err = bounded.Definition(briefly(t), d.Ref)
	unknown(t, err)
	bounded.Close()

	changed := kubetest.Put(s, kubetest.Definition{Namespace: "blue", Name: "storage", Config: `{"type":"macvlan"}`})
	s.Start()
	awaitSync(t, second)
	if got, err := second.Definition(t.Context(), d.Ref); err != nil || got.Version != changed.Version {
		t.Errorf("with an API: %+v, %v, want version %s", got, err, changed.Version)
	}
}
