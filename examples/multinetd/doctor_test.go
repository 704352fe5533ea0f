package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metacni/metacni/examples/multinet/doctor"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// The doctor of the daemon looks at what its configuration names, and changes nothing.
func TestDoctorLooksWithTheConfigurationOfTheDaemon(t *testing.T) {
	t.Parallel()
	n := nodetest.New(t)
	put := func(name, text string) {
		nodetest.OK(t, os.MkdirAll(filepath.Dir(n.Path(name)), 0o700))
		n.Write(name, text)
	}
	put("host/run/.keep", "")
	put("host/var/.keep", "")
	put("host/net.d/10-blue.conflist", `{"cniVersion":"1.0.0","name":"blue","plugins":[{"type":"bridge"}]}`)
	put("host/plugins/bridge", "#!/bin/sh\n")
	put("host/queue/x.json", "")
	put("host/etc/crio/crio.conf", "[crio.network]\nnetwork_dir = \"/net.d\"\nplugin_dirs = [\"/plugins\"]\n")
	put("config.json", `{"chrootDir":"`+n.Path("host")+`","socketDir":"/run/m","queueDir":"/queue","multusConfigFile":"auto","cniConfigDir":"/net.d","binDir":"/plugins","logToStderr":true}`)
	look := func(args ...string) (all []doctor.Finding) {
		t.Helper()
		before := n.Files("")
		var out strings.Builder
		err := run(t.Context(), append([]string{"doctor", "-o", "json"}, args...), n.Path("config.json"), nil, &out, &out)
		nodetest.Says(t, err, "something is to be done")
		nodetest.OK(t, json.Unmarshal([]byte(out.String()), &all))
		nodetest.Equal(t, "files", n.Files(""), before)
		return all
	}
	want := []string{
		"config ok " + n.Path("config.json"), "runtimes ok /etc/crio/crio.conf", "first problem /net.d", "plugins fatal /net.d/10-blue.conflist", "cilium ok /net.d", "chain ok /net.d",
		"disk ok /var/lib/cni/multinet", "files ok /net.d", "records ok /var/lib/cni/multinet", "unknown ok /var/lib/cni/multinet", "leases ok /var/lib/cni/multinet", "cache ok /var/lib/cni",
		"daemon problem /run/m/multus.sock", "daemon problem /queue",
	}
	var got []string
	for _, f := range look() {
		got = append(got, f.Check+" "+string(f.Verdict)+" "+f.Looked)
	}
	nodetest.Equal(t, "findings", got, want)

	// Without binDir, as in the shipped configuration, the shim is where the runtime looks for it.
	put("shipped.json", `{"chrootDir":"`+n.Path("host")+`","multusConfigFile":"auto"}`)
	for _, f := range look("--config", n.Path("shipped.json"), "--cni-config-dir", "/net.d") {
		if f.Check == "runtimes" && f.Verdict != doctor.OK {
			t.Errorf("%+v", f)
		}
	}

	// The records of the runtime's network are not where the daemon looks for them.
	put("two.json", `{"chrootDir":"`+n.Path("host")+`","multusConfigFile":"auto","network":{"cniDir":"/var/other"}}`)
	if all := look("--config", n.Path("two.json")); all[1].Check != "config" || all[1].Verdict != doctor.Problem || !strings.Contains(all[1].Found, "/var/other") {
		t.Errorf("%+v", all[1])
	}

	put("bad.json", `{"socketDir":"run"}`)
	for file, why := range map[string]string{"bad.json": `socketDir "run" is not an absolute path`, "absent": "no such file", "host": "not a regular file"} {
		all := look("--config", n.Path(file))
		if len(all) != 1 || all[0].Check != "config" || all[0].Verdict != doctor.Fatal || all[0].Looked != n.Path(file) || !strings.Contains(all[0].Found, why) {
			t.Errorf("%s: %+v", file, all)
		}
	}
	var out strings.Builder
	nodetest.OK(t, run(t.Context(), []string{"doctor", "--help"}, "/default", nil, &out, &out))
	for _, wrong := range []string{"--what", "-o yaml", "-o wide", "extra -o json"} {
		nodetest.Says(t, run(t.Context(), append([]string{"doctor"}, strings.Fields(wrong)...), "/default", nil, &out, &out), "see multinetd --help")
	}
}
