package queue

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/metacni/metacni/delegate/thick/wire"
)

const (
	entrySuffix   = ".json"
	damagedSuffix = ".corrupt"

	sumHead = `{"sum":"`
	sumTail = `",`
	sumLen  = len(sumHead) + 2*sha256.Size + len(sumTail)

	maxFile = wire.MaxBody + int64(sumLen)
)

// Name returns the name of r's file, a hash of r's attachment, so that a runtime
// that repeats its DEL does not fill the queue. It fails if the configuration is
// no JSON object or its name is no string.
func Name(r wire.Request) (string, error) {
	var conf *struct {
		Name string `json:"name"`
	}
	// Not err, which quotes the configuration.
	if err := json.Unmarshal(r.Config, &conf); err != nil || conf == nil {
		return "", errConfig
	}
	key, err := json.Marshal([]string{conf.Name, r.Env["CNI_CONTAINERID"], r.Env["CNI_IFNAME"]})
	return fmt.Sprintf("%x", sha256.Sum256(key)) + entrySuffix, err
}

// encode returns the name and the content of r's file. The content is the JSON of r
// with one more key at its start, a checksum of the rest: a DEL with one damaged
// letter may be that of another container.
func encode(r wire.Request) (name string, data []byte, err error) {
	if name, err = Name(r); err != nil {
		return "", nil, err
	}
	r.DeadlineMs = 0 // nobody waits for it
	body, err := json.Marshal(r)
	if err != nil {
		return "", nil, err
	}
	if len(body) > wire.MaxBody {
		return "", nil, errTooMuch
	}
	return name, append([]byte(head(body)), body[1:]...), nil
}

// decode returns the request in a file with the name that encode has written. A
// JSON object without a checksum was written by another version.
func decode(name string, data []byte) (wire.Request, error) {
	if !bytes.HasPrefix(data, []byte(sumHead)) && json.Valid(data) && data[0] == '{' {
		return wire.Request{}, ErrVersion
	}
	if len(data) < sumLen {
		return wire.Request{}, errors.New("the file is truncated")
	}
	body := append([]byte{'{'}, data[sumLen:]...)
	if !bytes.HasPrefix(data, []byte(head(body))) {
		return wire.Request{}, errors.New("the checksum is wrong")
	}
	var r wire.Request
	if err := json.Unmarshal(body, &r); err != nil {
		return wire.Request{}, errors.New("the content is not a request")
	}
	if is, err := Name(r); err != nil || is != name {
		return wire.Request{}, errors.New("the request belongs to another file name")
	}
	return r, nil
}

// head returns the beginning of a file, which takes the place of the body's brace.
func head(body []byte) string {
	return fmt.Sprintf("%s%x%s", sumHead, sha256.Sum256(body), sumTail)
}

// isName reports whether name is a hash with the suffix.
func isName(name, suffix string) bool {
	hash, found := strings.CutSuffix(name, suffix)
	if !found || len(hash) != 2*sha256.Size {
		return false
	}
	_, err := hex.DecodeString(hash)
	return err == nil
}
