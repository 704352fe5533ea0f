// Fake is a CNI plugin that attaches nothing. It logs its calls, keeps a marker
// file in place of an interface, and fails as its configuration says. With
// "inner" it runs a real plugin, which does the work. Under another name, in a directory beside
// "fake", it stands in for the plugin of that name, whatever its configuration says: what it does is
// in the file fake/NAME.json.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// config contains the keys of its configuration that the fake reads.
type config struct {
	CNIVersion string            `json:"cniVersion"`
	ID         string            `json:"id"`    // identifies the fake
	Dir        string            `json:"dir"`   // directory of log and markers
	On         map[string]string `json:"on"`    // faults by command
	Code       uint              `json:"code"`  // error code of "fail"
	Inner      string            `json:"inner"` // path of a plugin that does the work
	Print      json.RawMessage   `json:"print"` // the result to print
	Parallel   bool              `json:"parallel"`
	PrevResult json.RawMessage   `json:"prevResult"`
}

func main() {
	var conf config
	stdin := json.RawMessage{}
	if err := json.NewDecoder(os.Stdin).Decode(&stdin); err != nil {
		fail(conf, 6, "stdin: "+err.Error())
	}
	if err := json.Unmarshal(stdin, &conf); err != nil {
		fail(conf, 6, err.Error())
	}
	if conf.Dir == "" {
		if err := standIn(&conf); err != nil {
			fail(conf, 5, err.Error())
		}
	}
	command := os.Getenv("CNI_COMMAND")
	if command == "VERSION" {
		fmt.Println(`{"cniVersion":"1.1.0","supportedVersions":["0.3.1","0.4.0","1.0.0","1.1.0"]}`)
		return
	}
	if err := run(conf, command, stdin); err != nil {
		fail(conf, 5, err.Error())
	}
}

// standIn reads what the plugin of this name does. The result that it prints may name variables of
// the environment, such as $CNI_IFNAME.
func standIn(conf *config) error {
	self := config{ID: filepath.Base(os.Args[0]), Dir: filepath.Join(filepath.Dir(filepath.Dir(os.Args[0])), "fake")}
	text, err := os.ReadFile(filepath.Join(self.Dir, self.ID+".json"))
	if err == nil {
		err = json.Unmarshal([]byte(os.ExpandEnv(string(text))), &self)
	}
	self.CNIVersion, self.PrevResult = conf.CNIVersion, conf.PrevResult
	*conf = self
	return err
}

func run(conf config, command string, stdin json.RawMessage) error {
	marker := filepath.Join(conf.Dir, "live", strings.Join([]string{conf.ID, os.Getenv("CNI_CONTAINERID"), os.Getenv("CNI_IFNAME")}, "@"))
	if err := errors.Join(alone(conf), log(conf, command, stdin), step(conf, "start")); err != nil {
		return err
	}
	if conf.On[command] == "late" {
		if err := late(conf); err != nil {
			return err
		}
	}
	// An ADD fails after the plugin has done its work, a DEL before.
	var out []byte
	if command == "ADD" {
		err := os.WriteFile(marker, nil, 0o600)
		if err == nil {
			out, err = inner(conf, stdin)
		}
		if err != nil {
			return err
		}
	}
	if err := misbehave(conf, command); err != nil {
		return err
	}
	if command != "ADD" {
		if _, err := inner(conf, stdin); err != nil {
			return err
		}
	}
	if command == "DEL" {
		if err := os.Remove(marker); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := step(conf, "middle"); err != nil {
		return err
	}
	switch command {
	case "ADD":
		if err := answer(conf, out); err != nil {
			return err
		}
	case "CHECK":
		if _, err := os.Stat(marker); err != nil {
			fail(conf, 100, "not attached")
		}
	}
	return step(conf, "end")
}

// log appends one line to the log of calls. The tests read it as type call.
func log(conf config, command string, stdin json.RawMessage) error {
	line, err := json.Marshal(map[string]any{
		"command": command, "id": conf.ID, "pid": os.Getpid(), "started": started(),
		"container": os.Getenv("CNI_CONTAINERID"), "ifname": os.Getenv("CNI_IFNAME"),
		"netns": os.Getenv("CNI_NETNS"), "args": os.Getenv("CNI_ARGS"), "stdin": stdin,
	})
	if err != nil {
		return err
	}
	return appendLine(filepath.Join(conf.Dir, "log"), string(line)+"\n")
}

// started returns when this process has started, in the kernel's words. Another process may have
// its number later.
func started() string { return stat("self")[19] }

// stat returns the fields of /proc/PID/stat after the name, or nil if there is no such process.
func stat(pid string) []string {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return nil
	}
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
}

// answer prints the result of an ADD: the inner plugin's output, the result in
// the configuration, or a result of its own.
func answer(conf config, out []byte) error {
	if len(out) == 0 {
		out = conf.Print
	}
	if len(out) == 0 {
		return result(conf)
	}
	_, err := os.Stdout.Write(out)
	return err
}

// result prints prevResult if there is one, otherwise one interface with one
// address.
func result(conf config) error {
	if len(conf.PrevResult) > 0 {
		_, err := fmt.Println(string(conf.PrevResult))
		return err
	}
	ip := map[string]any{"address": "192.0.2.2/24", "gateway": "192.0.2.1", "interface": 0}
	if strings.HasPrefix(conf.CNIVersion, "0.") {
		ip["version"] = "4"
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"cniVersion": conf.CNIVersion,
		"interfaces": []any{map[string]any{"name": os.Getenv("CNI_IFNAME"), "sandbox": os.Getenv("CNI_NETNS")}},
		"ips":        []any{ip},
	})
}

func fail(conf config, code uint, msg string) {
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"cniVersion": conf.CNIVersion, "code": code, "msg": msg, "details": "fake " + conf.ID})
	os.Exit(1)
}
