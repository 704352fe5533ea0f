package main

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
)

// cached has the runtime attach a container to the network blue, as its libcni
// records it.
func (w *world) cached(t *testing.T, container, text string) string {
	t.Helper()
	conf := `{"cniVersion":"1.0.0","name":"blue","plugins":[{"type":"bridge"}]}`
	if text == "" {
		text = fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"config":%q,"ifName":"eth0","networkName":"blue","netns":"/no-such-directory/x","result":{"cniVersion":"1.0.0"}}`,
			container, base64.StdEncoding.EncodeToString([]byte(conf)))
	}
	file := filepath.Join(w.conf.publish.CacheDir, "results", "blue-"+container+"-eth0")
	nodetest.OK(t, os.MkdirAll(filepath.Dir(file), 0o700))
	nodetest.OK(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// A container that the runtime attached before the daemon started is taken over when
// the daemon is ready: its DEL removes it. What cannot be taken over is logged once.
func TestTakesOverWhatTheRuntimeAttached(t *testing.T) {
	t.Parallel()
	w := publishes(t)
	file := w.cached(t, "c1", "")
	w.cached(t, "c2", "{")
	w.start(t)
	request := w.request(t)
	w.put(t, "05-y.conflist", `{"cniVersion":"1.1.0","name":"green","plugins":[{"type":"macvlan"}]}`) // another pass
	nodetest.Code(t, w.client.Execute(t.Context(), "DEL", w.args(request)), 0)
	w.wantTrace(t, "DEL bridge eth0")
	if _, err := os.Lstat(file); err == nil {
		t.Error("the runtime's file is left")
	}
	w.final(t)
	logged := w.logged.String()
	for words, times := range map[string]int{"attachment taken over": 1, "attachment not taken over": 1, "blue-c2-eth0": 1} {
		if n := strings.Count(logged, words); n != times {
			t.Errorf("%q is logged %d times:\n%s", words, n, logged)
		}
	}
}

// The DEL of a container that the runtime has attached to the old network meanwhile, and that
// no pass has seen, removes it: the published network says where the runtime's cache is.
func TestDELRemovesWhatTheRuntimeAttachedMeanwhile(t *testing.T) {
	t.Parallel()
	w := publishes(t)
	w.start(t)
	request := w.request(t)
	file := w.cached(t, "c1", "")
	for range 2 {
		nodetest.Code(t, w.client.Execute(t.Context(), "DEL", w.args(request)), 0)
	}
	w.wantTrace(t, "DEL bridge eth0")
	if _, err := os.Lstat(file); err == nil {
		t.Error("the runtime's file is left")
	}
	w.clean(t)
}

// With chrootDir the records of others are read in the root of the node.
func TestTakesOverInTheRootOfTheNode(t *testing.T) {
	t.Parallel()
	root := node(t)
	nodetest.OK(t, os.Mkdir(root+"/tmp", 0o700)) // where a world has its directory
	w := newWorld(t, `,"multusConfigFile":"auto","chrootDir":"`+root+`","cniCacheDir":"`+root+`/run/cni"`)
	a := w.adopter(t.Context())
	if a.Node.Root != root || a.Node.CacheDir != "/run/cni" || a.Node.MultusDir != "/var/lib/cni/multus" || a.Life.Root != root || a.Life.Dir != root+w.dir+"/state" {
		t.Errorf("%+v, records in %s", a.Node, a.Life.Dir)
	}
}

// The records of the published network are in the directory that its requests use:
// keys in the daemon's file replace those of the network, in upper or lower case.
func TestRecordsOfThePublishedNetwork(t *testing.T) {
	t.Parallel()
	for keys, want := range map[string]string{
		``:                   "/other",
		`,"cniDir":"/state"`: "/state",
		`,"CNIDIR":"/state"`: "/state",
	} {
		file := filepath.Join(t.TempDir(), "daemon.json")
		nodetest.OK(t, os.WriteFile(file, []byte(`{"multusConfigFile":"auto","network":{"cniDir":"/other"}`+keys+`}`), 0o600))
		c, err := readConfig(nil, file, nil)
		nodetest.OK(t, err)
		if c.publish.stateDir != want {
			t.Errorf("%s: records in %s", keys, c.publish.stateDir)
		}
	}
}
