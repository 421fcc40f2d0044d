package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"
	apiproxy "k8s.io/apimachinery/pkg/util/proxy"
	translator "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/util/cert"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// certificate is made here, as a kubelet does without a configured one. Only the API server may
// connect: otherwise any client could run programs with this process's rights.
func certificate(clients string) (*tls.Config, error) {
	own, key, err := cert.GenerateSelfSignedCertKey("lab-node", nil, nil)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(own, key)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if clients == "" {
		return nil, errors.New("-clients is missing")
	}
	allowed, err := os.ReadFile(clients)
	if err != nil {
		return nil, err
	}
	config.ClientCAs = x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(allowed) {
		return nil, fmt.Errorf("%s holds no certificate", clients)
	}
	config.ClientAuth = tls.RequireAndVerifyClientCert
	return config, nil
}

// streams is the service of a container runtime: a client with one of its addresses, which are
// valid once, gets a process.
func streams(f *Fleet) (streaming.Server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	config := streaming.DefaultConfig
	config.Addr = listener.Addr().String()
	server, err := streaming.NewServer(config, containers{f})
	if err != nil {
		return nil, err
	}
	go func() { _ = http.Serve(listener, server) }()
	return server, nil
}

// kubelet serves the API server's requests to a kubelet.
func (f *Fleet) kubelet() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", f.exec)
	mux.HandleFunc("/exec/{namespace}/{pod}/{uid}/{container}", f.exec)
	mux.HandleFunc("/containerLogs/{namespace}/{pod}/{container}", f.logs)
	return mux
}

type responder struct{}

func (responder) Error(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

// exec forwards the stream to the runtime's address, the way a kubelet of 1.36 does: a websocket
// with closable streams is translated, all else goes through.
func (f *Fleet) exec(w http.ResponseWriter, request *http.Request) {
	options, err := remotecommand.NewOptions(request)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	run := f.find(request.PathValue("namespace"), request.PathValue("pod"))
	if run == nil {
		http.Error(w, "pod does not exist", http.StatusNotFound)
		return
	}
	if name := request.PathValue("container"); run.process() == 0 || name != run.container().Name {
		http.Error(w, fmt.Sprintf("container not found (%q)", name), http.StatusInternalServerError)
		return
	}
	answer, err := f.streams.GetExec(&criapi.ExecRequest{
		ContainerId: string(run.uid), Cmd: request.Form["command"],
		Stdin: options.Stdin, Stdout: options.Stdout, Stderr: options.Stderr, Tty: options.TTY,
	})
	if err != nil {
		streaming.WriteError(err, w)
		return
	}
	location, err := url.Parse(answer.Url)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	var handler http.Handler = apiproxy.NewUpgradeAwareHandler(location, nil, false, true, responder{})
	if wsstream.IsWebSocketRequestWithStreamCloseProtocol(request) {
		handler = translator.NewStreamTranslatorHandler(location, nil, 0, translator.Options{
			Stdin: options.Stdin, Stdout: options.Stdout, Stderr: options.Stderr, Tty: options.TTY,
		})
	}
	handler.ServeHTTP(w, request)
}

// logs answers with the container's output, of both streams.
func (f *Fleet) logs(w http.ResponseWriter, request *http.Request) {
	run := f.find(request.PathValue("namespace"), request.PathValue("pod"))
	if run == nil {
		http.Error(w, "pod does not exist", http.StatusNotFound)
		return
	}
	log, err := os.Open(run.log())
	if err != nil {
		http.Error(w, "container is waiting to start", http.StatusBadRequest)
		return
	}
	defer log.Close()
	w.Header().Set("Content-Type", "text/plain")
	left := int64(1 << 30)
	if limit, err := strconv.ParseInt(request.FormValue("limitBytes"), 10, 64); err == nil {
		left = limit
	}
	for {
		copied, err := io.CopyN(w, log, left)
		left -= copied
		if err != io.EOF || left <= 0 || request.FormValue("follow") != "true" || run.process() == 0 {
			return
		}
		if flusher, ok := w.(http.Flusher); ok {
			flusher.Flush()
		}
		select {
		case <-request.Context().Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// containers serves one stream.
type containers struct{ fleet *Fleet }

func (c containers) Exec(_ context.Context, id string, command []string, in io.Reader, out, failed io.WriteCloser,
	_ bool, _ <-chan remotecommand.TerminalSize,
) error {
	c.fleet.mu.Lock()
	run := c.fleet.runs[types.UID(id)]
	c.fleet.mu.Unlock()
	if run == nil {
		return fmt.Errorf("container %s is gone", id)
	}
	return run.exec(command, in, out, failed)
}

func (containers) Attach(context.Context, string, io.Reader, io.WriteCloser, io.WriteCloser, bool,
	<-chan remotecommand.TerminalSize,
) error {
	return errors.New("the lab attaches to nothing")
}

func (containers) PortForward(context.Context, string, int32, io.ReadWriteCloser) error {
	return errors.New("the lab forwards no ports")
}
