package main

import (
	"strings"
	"testing"
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
			h.WantTrace()
			h.clean()
			if h.printed.Len() > 0 {
				t.Errorf("printed %q", h.printed.String())
			}
		})
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
		h.WantTrace("ADD bridge eth0", "CHECK bridge eth0", "DEL bridge eth0")
		h.clean()
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
