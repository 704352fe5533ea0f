package main

import (
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/examples/internal/programtest"
)

// A mistake in the configuration is found before a plugin runs. The error has the
// right code and names network and key.
func TestBadConfiguration(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, keys string
		code       uint
		says       []string
	}{
		{"forbidden name", `"delegate":{"name":"x"}`, 7, []string{`"pods"`, `"delegate.name"`}},
		{"forbidden ipam", `"delegate":{"ipam":{}}`, 7, []string{`"pods"`, `"delegate.ipam"`}},
		{"delegate of the wrong type", `"delegate":"bridge"`, 6, []string{`"pods"`, `"delegate"`}},
		{"type of the wrong type", `"delegate":{"type":5}`, 6, []string{`"pods"`, `"delegate.type"`}},
		{"empty type", `"delegate":{"type":""}`, 7, []string{`"pods"`, "type"}},
		{"version of the wrong type", `"delegate":{"cniVersion":1}`, 6, []string{`"pods"`, `"delegate.cniVersion"`}},
		{"a type that is a path", `"delegate":{"type":"../bridge"}`, 7, []string{`"pods"`, `"../bridge"`}},
		{"a plugin that is missing", `"delegate":{"type":"absent"}`, 7, []string{`"pods"`, `"absent"`, "not found"}},
		{"itself", `"delegate":{"type":"flannel"}`, 7, []string{`"pods"`, `"flannel"`, "itself"}},
		{"a key twice", `"delegate":{"mtu":1,"mtu":2}`, 6, []string{`"delegate.mtu"`}},
		{"ipam of the wrong type", `"ipam":[]`, 6, []string{`"pods"`, `"ipam"`}},
		{"ipam.type of the wrong type", `"ipam":{"type":5}`, 6, []string{`"pods"`, `ipam`}},
		{"routes of the wrong type", `"ipam":{"routes":{}}`, 6, []string{`"pods"`, `"ipam.routes"`}},
		{"route of the wrong type", `"ipam":{"routes":["10.0.0.0/8"]}`, 6, []string{`"pods"`, `"ipam.routes[0]"`}},
		{"route to nowhere", `"ipam":{"routes":[{"dst":"10.0.0.0/8"},{"dst":"x"}]}`, 6, []string{`"pods"`, `"ipam.routes[1]"`}},
		{"runtimeConfig of the wrong type", `"runtimeConfig":5`, 6, []string{`"pods"`, `"runtimeConfig"`}},
		{"subnetFile of the wrong type", `"subnetFile":5`, 6, []string{`"pods"`, `"subnetFile"`}},
		{"subnetFile that is a directory", `"subnetFile":"/"`, 5, []string{`/`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.0.0", subnetEnv)
			wantError(t, h.run(t, "ADD", tt.keys), tt.code, tt.says...)
			h.wantTrace(t)
			h.clean(t)
			if h.printed.Len() > 0 {
				t.Errorf("printed %q", h.printed.String())
			}
		})
	}
}

// A mistake in the CNI variables or the form of the configuration is found before a
// plugin runs.
func TestBadCall(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		edit func(*skel.CmdArgs)
		code uint
		says []string
	}{
		{"not JSON", func(a *skel.CmdArgs) { a.StdinData = []byte("{") }, 6, []string{"cannot decode configuration"}},
		{"null", func(a *skel.CmdArgs) { a.StdinData = []byte("null") }, 6, []string{"cannot decode configuration"}},
		{"template for an interface name", func(a *skel.CmdArgs) { a.IfName = "net%d" }, 4, []string{"net%d"}},
		{"interface name of 16 bytes", func(a *skel.CmdArgs) { a.IfName = "abcdefghijklmnop" }, 4, []string{"abcdefghijklmnop"}},
		{"interface name that is a path", func(a *skel.CmdArgs) { a.IfName = "../x" }, 4, []string{"../x"}},
		{"interface name that is taken", func(a *skel.CmdArgs) { a.IfName = "used0" }, 7, []string{"used0", "pods", "in use"}},
		{"container ID with a slash", func(a *skel.CmdArgs) { a.ContainerID = "a/b" }, 4, []string{"a/b"}},
		{"container ID that leads out", func(a *skel.CmdArgs) { a.ContainerID = "../../x" }, 4, []string{"../../x"}},
		{"the host's own namespace", func(a *skel.CmdArgs) { a.Netns = "/proc/self/ns/net" }, 8, []string{"/proc/self/ns/net"}},
	} {
		for _, command := range []string{"ADD", "DEL"} {
			t.Run(tt.name+" "+command, func(t *testing.T) {
				t.Parallel()
				h := newHost(t, "1.0.0", subnetEnv)
				h.taken = []string{"lo", "used0"}
				err := h.run(t, command, "", tt.edit)
				if command == "ADD" || tt.code == 6 {
					wantError(t, err, tt.code, tt.says...)
				}
				h.wantTrace(t)
				h.clean(t)
				if files := programtest.Files(t, h.dir); len(files) != 1 {
					t.Errorf("wrote %q", files)
				}
			})
		}
	}
}

// Directories that depend on the working directory or belong to runtimes are
// refused.
func TestBadStateDirectory(t *testing.T) {
	t.Parallel()
	for dir, code := range map[string]uint{`"state"`: 7, `"/var/lib/cni"`: 7, `"/var/lib/cni/results/"`: 7, `5`: 6} {
		for _, command := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS"} {
			h := newHost(t, "1.1.0", subnetEnv)
			err := h.run(t, command, "", func(a *skel.CmdArgs) {
				a.StdinData = []byte(strings.Replace(string(a.StdinData), `"`+h.state()+`"`, dir, 1))
			})
			wantError(t, err, code, `"pods"`, `"dataDir"`)
			h.wantTrace(t)
		}
	}
}

func TestCHECKAndDELUseTheRecordWhateverTheConfigurationSays(t *testing.T) {
	t.Parallel()
	for _, keys := range []string{
		`"delegate":5`, `"delegate":{"name":"x"}`, `"delegate":{"type":"ptp"}`, `"delegate":{"mtu":1,"mtu":2}`, `"delegate":{"x":"` + "\xff" + `"}`,
		`"ipam":5`, `"runtimeConfig":5`, `"subnetFile":5`, `"subnetFile":"/absent"`,
	} {
		h := newHost(t, "1.0.0", subnetEnv)
		h.mustRun(t, "ADD", "")
		h.mustRun(t, "CHECK", keys)
		h.mustRun(t, "DEL", keys)
		h.wantTrace(t, "ADD bridge eth0", "CHECK bridge eth0", "DEL bridge eth0")
		h.clean(t)
	}
}

func TestErrorsDoNotRepeatTheConfiguration(t *testing.T) {
	t.Parallel()
	const secret = "hunter2hunter2"
	for _, keys := range []string{
		`"delegate":{"type":"full","password":"` + secret + `"}`,
		`"delegate":{"type":"absent","password":"` + secret + `"}`,
		`"delegate":{"name":"` + secret + `"}`,
		`"ipam":["` + secret + `"]`,
		`"ipam":{"routes":["` + secret + `"]}`,
		`"delegate":{"password":"` + secret + `","password":"x"}`,
	} {
		h := newHost(t, "1.1.0", subnetEnv)
		for _, command := range []string{"ADD", "CHECK", "STATUS", "GC"} {
			if err := h.run(t, command, keys); err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("%s: %v", command, err)
			}
		}
		if strings.Contains(h.printed.String(), secret) {
			t.Errorf("printed %s", h.printed.String())
		}
	}
}
