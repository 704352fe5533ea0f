package shim

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/internal/redact"
)

// maxText is how many bytes an error quotes of a text that is no error object.
const maxText = 256

// result decodes a response with the status 200. Only an ADD has a result.
func (k *call) result(r *response) (types.Result, error) {
	if k.command != "ADD" {
		return nil, nil
	}
	var answer wire.Response
	if err := json.Unmarshal(r.body, &answer); err != nil {
		if syntax := (*json.SyntaxError)(nil); r.unframed && errors.As(err, &syntax) && syntax.Offset >= int64(len(r.body)) {
			return nil, k.fail(fmt.Errorf("%w: %w", errLost, io.ErrUnexpectedEOF))
		}
		return nil, k.fail(errResult)
	}
	if !bytes.HasPrefix(answer.Result, []byte("{")) {
		return nil, k.fail(errResult) // null would decode
	}
	k.version = answer.CNIVersion
	result, err := create.CreateFromBytes(answer.Result)
	if err != nil {
		return nil, k.fail(fmt.Errorf("%w: %w", errResult, err))
	}
	return result, nil
}

// refusal returns the error of a response with another status: the error object
// of the daemon if it is one.
func (k *call) refusal(r *response) error {
	var said types.Error
	if err := json.Unmarshal(r.body, &said); err != nil || said == (types.Error{}) {
		return k.unspecified(r)
	}
	said.Msg, said.Details = k.hide(said.Msg), k.hide(said.Details)
	said.Code = k.refusalCode(r.status, said.Code)
	return &said
}

// refusalCode returns the code of an error object.
func (k *call) refusalCode(status int, code uint) uint {
	switch {
	case status == 503 && k.command != "STATUS":
		return types.ErrTryAgainLater
	case status == 503 && code != codeLimited:
		return codeNotReady
	case code == types.ErrUnknown:
		return types.ErrInternal
	}
	return code
}

// unspecified returns the error of a daemon that sends no error objects, as the
// daemons of Multus did.
func (k *call) unspecified(r *response) error {
	text, said := fmt.Sprintf("the daemon answered %d", r.status), k.excerpt(r.body)
	switch {
	case r.status == 404:
		text += ": it does not serve " + k.path
	case said != "":
		text += fmt.Sprintf(": %q", said)
	}
	if r.status == 503 {
		return fault.New(types.ErrTryAgainLater, text) // nothing was done
	}
	return fault.New(types.ErrInternal, text)
}

// excerpt returns the message in a text that is no error object. The daemon of
// Multus puts the request in front of it, with the configuration as numbers.
func (k *call) excerpt(body []byte) string {
	text := string(body)
	if i := strings.LastIndex(text, "ERRORED: "); i >= 0 {
		text = text[i+len("ERRORED: "):]
	}
	if i := strings.IndexAny(text, "[{"); i >= 0 {
		text = text[:i]
	}
	text = strings.Trim(k.hide(text), " \t\r\n&'\"")
	return strings.ToValidUTF8(text[:min(len(text), maxText)], "\uFFFD") // not removed: that could join the parts of a secret
}

// hide removes the configuration and its credentials from text. Daemons of Multus
// also repeat the configuration as numbers and as base64.
func (k *call) hide(text string) string {
	conf := k.args.StdinData
	if len(conf) >= redact.MinSecret {
		for _, form := range []string{strings.Trim(fmt.Sprintf("%d", conf), "[]"), base64.StdEncoding.EncodeToString(conf)} {
			text = strings.ReplaceAll(text, form, redact.Hidden)
		}
	}
	return redact.Credentials(conf).Hide(text)
}

// show writes r to w in one write, converted to version.
func show(w io.Writer, r types.Result, version string) error {
	var out bytes.Buffer
	if err := convert(&out, r, version); err != nil {
		return types.NewError(types.ErrIncompatibleCNIVersion, "the result cannot be expressed in version "+strconv.Quote(version), err.Error())
	}
	out.WriteByte('\n')
	if _, err := w.Write(out.Bytes()); err != nil {
		return types.NewError(types.ErrIOFailure, "the result cannot be printed", err.Error())
	}
	return nil
}

// convert prints r in the version. The converters of the CNI library panic on some
// results that it decodes, such as a null among the interfaces.
func convert(out io.Writer, r types.Result, version string) (err error) {
	defer func() {
		if e := recover(); e != nil {
			err = errors.New("the result is not valid in its version")
		}
	}()
	if r.Version() != version {
		if r, err = r.GetAsVersion(version); err != nil {
			return err
		}
	}
	return r.PrintTo(out)
}
