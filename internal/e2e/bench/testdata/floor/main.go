// Floor is a minimal meta-plugin: it runs its delegates one after another and
// prints the result of the first. It keeps no state, checks nothing and undoes
// nothing.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
)

type config struct {
	Name       string           `json:"name"`
	CNIVersion string           `json:"cniVersion"`
	Delegates  []map[string]any `json:"delegates"`
}

func main() {
	if os.Getenv("CNI_COMMAND") == "VERSION" {
		fmt.Println(`{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}`)
		return
	}
	if err := run(os.Getenv("CNI_COMMAND")); err != nil {
		fmt.Printf(`{"code":999,"msg":%q}`, err)
		os.Exit(1)
	}
}

func run(command string) error {
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var conf config
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return err
	}
	indices := make([]int, len(conf.Delegates))
	for i := range indices {
		indices[i] = i
	}
	if command == "DEL" {
		slices.Reverse(indices)
	}
	for _, i := range indices {
		out, err := delegate(conf, i)
		if err != nil {
			return fmt.Errorf("delegate %d: %w: %s", i, err, out)
		}
		if i == 0 && command == "ADD" {
			_, _ = os.Stdout.Write(out)
		}
	}
	return nil
}

func delegate(conf config, i int) ([]byte, error) {
	d := conf.Delegates[i]
	if d["name"] == nil {
		d["name"] = conf.Name
	}
	d["cniVersion"] = conf.CNIVersion
	stdin, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	path := ""
	for _, dir := range filepath.SplitList(os.Getenv("CNI_PATH")) {
		path = filepath.Join(dir, fmt.Sprint(d["type"]))
		if _, err := os.Stat(path); err == nil {
			break
		}
	}
	cmd := exec.Command(path)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(stdin), os.Stderr
	if i > 0 {
		cmd.Env = append(os.Environ(), "CNI_IFNAME=net"+strconv.Itoa(i))
	}
	return cmd.Output()
}
