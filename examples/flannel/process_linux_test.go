package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/examples/internal/programtest"
)

// The tests here run flannel as a process, as a runtime does. Tests with real
// namespaces are in internal/e2e.

func TestMain(m *testing.M) {
	programtest.Main(m, "flannel", main)
}

// processConf returns a configuration with a fake delegate. The string fake holds
// more keys of the delegate, as JSON without the braces.
func processConf(t *testing.T, h *programtest.Host, version, fake string) string {
	t.Helper()
	file := filepath.Join(h.Dir, "subnet.env")
	if err := os.WriteFile(file, []byte(subnetEnv), 0o600); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"cniVersion":%q,"name":"pods","type":"flannel","dataDir":%q,"subnetFile":%q,"delegate":{"type":"fake","dir":%q,"secret":"hunter2hunter2"%s}}`,
		version, h.State, file, h.Dir, fake)
}

func TestProcess(t *testing.T) {
	t.Parallel()
	h := programtest.NewHost(t, "flannel")
	conf := processConf(t, h, "1.1.0", "")
	for _, tt := range []struct{ command, stdin, want string }{
		{"ADD", conf, `{"cniVersion":"1.1.0"}`},
		{"CHECK", conf, ""},
		{"STATUS", conf, ""},
		{"DEL", conf, ""},
		{"VERSION", "", `{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}`},
	} {
		stdout, stderr, code := h.Run(tt.command, tt.stdin)
		if got := strings.TrimSpace(string(stdout)); got != tt.want || stderr != "" || code != 0 {
			t.Errorf("%s: status %d, %s, %q; want %s", tt.command, code, got, stderr, tt.want)
		}
	}
	if diff := cmp.Diff([]string{"ADD eth0", "CHECK eth0", "STATUS", "DEL eth0"}, h.Log()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	stdout, stderr, code := h.Run("", "")
	if len(stdout) > 0 || code != 0 || !strings.Contains(stderr, "meta-plugin flannel") {
		t.Errorf("without a command: status %d, %s, %s", code, stdout, stderr)
	}
	if files := programtest.Files(t, h.State); len(files) > 0 {
		t.Errorf("left: %q", files)
	}
}

// Every error is one JSON object on stdout, with a version and a code, and without
// anything from the configuration.
func TestErrorIsOneObject(t *testing.T) {
	t.Parallel()
	h := programtest.NewHost(t, "flannel")
	conf := processConf(t, h, "1.1.0", "")
	for _, tt := range []struct {
		name, command, stdin string
		env                  []string
		code                 uint
	}{
		{"no interface name", "ADD", conf, []string{"CNI_IFNAME="}, 4},
		{"template for an interface name", "ADD", conf, []string{"CNI_IFNAME=net%d"}, 4},
		{"not JSON", "ADD", "{", nil, 6},
		{"forbidden key", "ADD", processConf(t, h, "1.1.0", `,"name":"x"`), nil, 7},
		{"the host's own namespace", "ADD", conf, []string{"CNI_NETNS=/proc/self/ns/net"}, 8},
		{"delegate fails", "ADD", processConf(t, h, "1.1.0", `,"on":{"ADD":"fail"}`), nil, 107},
		{"no flanneld", "STATUS", strings.Replace(conf, "subnet.env", "absent", 1), nil, 50},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stdout, stderr, code := h.Run(tt.command, tt.stdin, tt.env...)
			version, said := h.Said(stdout)
			if code != 1 || version != "1.1.0" || said.Code != tt.code || said.Msg == "" {
				t.Errorf("status %d, version %s, %+v; want status 1, code %d", code, version, said, tt.code)
			}
			if stderr != "" || bytes.Contains(stdout, []byte("hunter2")) {
				t.Errorf("stdout %s, stderr %s", stdout, stderr)
			}
		})
	}
	if diff := cmp.Diff([]string{"ADD eth0", "DEL eth0"}, h.Log()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}
